//! Finds the bases of an image, by what they hold and not by what they are called.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::layer::{self, Layer};
use crate::layout::LAYERS_MAX;
use crate::{Error, Identity, Result};

/// Files of a folder that are looked at.
const FILES_MAX: usize = 4096;

/// The layer with all that lie below it.
pub(crate) fn resolve(top: Layer, named: &[PathBuf]) -> Result<Vec<Layer>> {
    let mut layers = vec![top];
    while let Some(above) = layers.last()
        && let Some(wanted) = above.header.base
    {
        // Before anything is opened: the chain ends whatever the files say.
        too_deep(&layers[0].path, layers.len() + 1)?;
        let path = find(above, wanted, named)?;
        let file = File::open(&path).map_err(|error| Error::io("open", &path, error))?;
        layers.push(Layer::open(Box::new(file), &path)?);
        check_last(&layers)?;
    }
    for path in named {
        // A base that was named and is not one of them is a mistake of who named it.
        let found = identity(path)?;
        let used = |layer: &Layer| layer.header.identity == found;
        if !layers[1..].iter().any(used) {
            return Err(match &layers[0].header.base {
                Some(wanted) => Error::WrongBase {
                    path: path.clone(),
                    above: layers[0].path.clone(),
                    wanted: *wanted,
                    found,
                },
                None => Error::input(format!(
                    "{}: is given as base, but {} has no base",
                    path.display(),
                    layers[0].path.display()
                )),
            });
        }
    }
    Ok(layers)
}

/// The layers are a chain.
pub(crate) fn check(layers: &[Layer]) -> Result<()> {
    let Some(last) = layers.last() else {
        return Err(Error::input("an image has a layer"));
    };
    too_deep(&layers[0].path, layers.len())?;
    (2..=layers.len()).try_for_each(|n| check_last(&layers[..n]))?;
    match last.header.base {
        None => Ok(()),
        Some(identity) => Err(Error::NoBase {
            path: last.path.clone(),
            identity,
            name: last.header.base_name.clone(),
        }),
    }
}

fn too_deep(path: &Path, layers: usize) -> Result<()> {
    match layers <= LAYERS_MAX {
        true => Ok(()),
        false => Err(Error::TooDeep {
            path: path.to_owned(),
            layers,
            max: LAYERS_MAX,
        }),
    }
}

fn check_last(layers: &[Layer]) -> Result<()> {
    let [.., above, below] = layers else {
        return Ok(());
    };
    match above.header.base {
        Some(wanted) if wanted == below.header.identity => {}
        wanted => {
            return Err(Error::WrongBase {
                path: below.path.clone(),
                above: above.path.clone(),
                wanted: wanted.unwrap_or(Identity([0; 32])),
                found: below.header.identity,
            });
        }
    }
    if above.header.depth != below.header.depth + 1 {
        return Err(above.damaged(35, "number of layers"));
    }
    Ok(())
}

fn identity(path: &Path) -> Result<Identity> {
    let file = File::open(path).map_err(|error| Error::io("open", path, error))?;
    Ok(layer::read_header(&file, path)?.identity)
}

/// The file of a base: one that was named, the one of the recorded name beside the image, any other beside it.
fn find(above: &Layer, wanted: Identity, named: &[PathBuf]) -> Result<PathBuf> {
    for path in named {
        if identity(path)? == wanted {
            return Ok(path.clone());
        }
    }
    let folder = match above.path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let name = &above.header.base_name;
    // The file's word: a name, no path that leads elsewhere.
    let recorded = Path::new(name)
        .file_name()
        .is_some_and(|only| only == name.as_str());
    let is_base = |path: &Path| {
        // Never waits for what is no file, as a pipe.
        path.is_file() && identity(path).is_ok_and(|found| found == wanted)
    };
    if recorded && is_base(&folder.join(name)) {
        return Ok(folder.join(name));
    }
    let files = fs::read_dir(folder).map_err(|error| Error::io("list", folder, error))?;
    let mut paths: Vec<PathBuf> = files
        .take(FILES_MAX)
        .filter_map(|file| Some(file.ok()?.path()))
        .collect();
    // Whatever order the folder has: the same one is found.
    paths.sort();
    paths
        .into_iter()
        .find(|path| is_base(path))
        .ok_or_else(|| Error::NoBase {
            path: above.path.clone(),
            identity: wanted,
            name: name.clone(),
        })
}
