//! Finds the bases of an image, by what they hold and not by what they are called.

use std::io;
use std::path::{Path, PathBuf};

use crate::layer::{self, Layer};
use crate::layout::LAYERS_MAX;
use crate::shelf::Shelf;
use crate::{Error, Identity, Result};

/// The layer with all that lie below it.
pub(crate) fn resolve(shelf: &dyn Shelf, top: Layer, named: &[PathBuf]) -> Result<Vec<Layer>> {
    let mut layers = vec![top];
    while let Some(above) = layers.last()
        && let Some(wanted) = above.header.base
    {
        // Before anything is opened: the chain ends whatever the files say.
        too_deep(&layers[0].path, layers.len() + 1)?;
        let path = find(shelf, above, wanted, named)?;
        let store = shelf.open(&path);
        let store = store.map_err(|error| Error::io("open", &path, error))?;
        layers.push(Layer::open(store, &path)?);
        check_last(&layers)?;
    }
    for path in named {
        // A base that was named and is not one of them is a mistake of who named it.
        let found = identity(shelf, path)?;
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

fn identity(shelf: &dyn Shelf, path: &Path) -> Result<Identity> {
    let store = shelf.open(path);
    let store = store.map_err(|error| Error::io("open", path, error))?;
    Ok(layer::read_header(&*store, path)?.identity)
}

/// Where a base is: one that was named, the one of the recorded name beside the image, any other beside it.
fn find(shelf: &dyn Shelf, above: &Layer, wanted: Identity, named: &[PathBuf]) -> Result<PathBuf> {
    for path in named {
        if identity(shelf, path)? == wanted {
            return Ok(path.clone());
        }
    }
    let name = &above.header.base_name;
    // The file's word: a name, no path that leads elsewhere.
    let recorded = Path::new(name)
        .file_name()
        .is_some_and(|only| only == name.as_str());
    // Never waits for what is no file, as a pipe.
    let looked = |path: &Path| shelf.is_ready(path).then(|| identity(shelf, path));
    if recorded {
        let path = above.path.with_file_name(name);
        match looked(&path) {
            Some(Ok(found)) if found == wanted => return Ok(path),
            // It is there, and a server that says nothing would say nothing of the others either.
            Some(Err(Error::Io {
                doing,
                path,
                source,
            })) if source.kind() == io::ErrorKind::TimedOut => {
                return Err(Error::Io {
                    doing,
                    path,
                    source,
                });
            }
            _ => {}
        }
    }
    let paths = shelf.beside(&above.path);
    let mut paths =
        paths.map_err(|error| Error::io("list what lies beside", &above.path, error))?;
    // Whatever order the folder has: the same one is found.
    paths.sort();
    paths
        .into_iter()
        .find(|path| looked(path).is_some_and(|found| found.is_ok_and(|found| found == wanted)))
        .ok_or_else(|| Error::NoBase {
            path: above.path.clone(),
            identity: wanted,
            name: name.clone(),
        })
}
