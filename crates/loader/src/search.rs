//! The order in which the loader of glibc finds libraries, without touching files.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::{Elf, Machine};

/// Libraries that are followed at most: a bound on what damaged or made-up files can cost.
pub const LIBRARIES_MAX: usize = 4096;

/// Libraries of libraries whose `DT_RPATH` counts.
const ANCESTORS_MAX: usize = 32;

/// What the files are: real ones, or those of a test.
pub trait Files {
    /// The program or library there; `None` if there is none, or something else.
    fn elf(&self, path: &Path) -> Option<Rc<Elf>>;
    /// Where the cache of `ldconfig` has a library of this name, best first.
    fn cached(&self, name: &str) -> Vec<PathBuf>;
}

/// What the environment adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// Folders of `LD_LIBRARY_PATH`, in order.
    pub library_path: Vec<String>,
    /// Libraries of `LD_PRELOAD`, in order.
    pub preload: Vec<String>,
}

impl Search {
    /// From the values of the two variables: the first is divided at colons or semicolons, the
    /// second at colons or spaces.
    pub fn new(library_path: Option<&str>, preload: Option<&str>) -> Search {
        Search {
            library_path: library_path.map_or_else(Vec::new, |list| {
                list.split([':', ';']).map(str::to_owned).collect()
            }),
            preload: preload.map_or_else(Vec::new, |list| {
                let names = list.split([':', ' ']).filter(|name| !name.is_empty());
                names.map(str::to_owned).collect()
            }),
        }
    }
}

/// A library that a program gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// As it is asked for.
    pub name: String,
    /// Where it is; `None` if it is not found, and the program does not start.
    pub path: Option<PathBuf>,
    /// Its own name, `DT_SONAME`.
    pub soname: Option<String>,
    /// Which library asked for it first; `None` for the program itself and `LD_PRELOAD`.
    pub needed_by: Option<usize>,
}

/// An object whose needs are followed.
struct Object {
    elf: Rc<Elf>,
    folder: PathBuf,
    /// In the list of libraries; `None` for the program.
    number: Option<usize>,
    /// Who brought it in, among the objects.
    parent: Option<usize>,
}

/// The libraries that are loaded with the program or library at `path`, which is `elf`, in their order.
pub fn libraries(path: &Path, elf: &Elf, search: &Search, files: &dyn Files) -> Vec<Library> {
    let machine = elf.machine;
    let mut found: Vec<Library> = Vec::new();
    // What is asked for and what libraries call themselves.
    let mut loaded = HashSet::new();
    let mut objects = vec![Object {
        elf: Rc::new(elf.clone()),
        folder: folder(path),
        number: None,
        parent: None,
    }];
    let mut at = 0;
    while at < objects.len() {
        let mut names = objects[at].elf.needed.clone();
        if at == 0 {
            // Before what the program itself asks for.
            names.splice(0..0, search.preload.iter().cloned());
        }
        for name in names {
            if found.len() >= LIBRARIES_MAX || !loaded.insert(name.clone()) {
                continue;
            }
            let place = find(&name, at, &objects, search, machine, files);
            let number = found.len();
            found.push(Library {
                name,
                path: place.as_ref().map(|(path, _)| path.clone()),
                soname: place.as_ref().and_then(|(_, elf)| elf.soname.clone()),
                needed_by: objects[at].number,
            });
            if let Some((path, elf)) = place {
                loaded.extend(elf.soname.clone());
                objects.push(Object {
                    elf,
                    folder: folder(&path),
                    number: Some(number),
                    parent: Some(at),
                });
            }
        }
        at += 1;
    }
    found
}

fn folder(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("/")).to_owned()
}

fn find(
    name: &str,
    asked_by: usize,
    objects: &[Object],
    search: &Search,
    machine: Machine,
    files: &dyn Files,
) -> Option<(PathBuf, Rc<Elf>)> {
    let suits = |path: PathBuf| {
        let elf = files.elf(&path)?;
        (elf.machine == machine && elf.is_loadable).then_some((path, elf))
    };
    let object = &objects[asked_by];
    if name.contains('/') {
        let paths = expand(name, &object.folder);
        return paths.into_iter().map(PathBuf::from).find_map(suits);
    }
    let below = |folders: &[String], origin: &Path| {
        folders
            .iter()
            .flat_map(|folder| expand(folder, origin))
            // An empty one is the working folder.
            .map(|folder| Path::new(if folder.is_empty() { "." } else { &folder }).join(name))
            .collect::<Vec<_>>()
    };
    let mut places = Vec::new();
    // Those of its ancestors count as well, unless it has the newer kind itself.
    if object.elf.runpath.is_empty() {
        let ancestors =
            std::iter::successors(Some(object), |object| Some(&objects[object.parent?]));
        for object in ancestors.take(ANCESTORS_MAX) {
            if object.elf.runpath.is_empty() {
                places.extend(below(&object.elf.rpath, &object.folder));
            }
        }
    }
    places.extend(below(&search.library_path, &objects[0].folder));
    places.extend(below(&object.elf.runpath, &object.folder));
    places.extend(files.cached(name));
    places.extend(
        usual_folders(machine)
            .into_iter()
            .map(|folder| Path::new(&folder).join(name)),
    );
    places.into_iter().find_map(suits)
}

/// Replaces `$ORIGIN`, `$LIB` and `$PLATFORM`, with or without braces. What `$LIB` stands for is
/// built into the loader: all usual folders are tried.
fn expand(text: &str, origin: &Path) -> Vec<String> {
    if !text.contains('$') {
        return vec![text.to_owned()];
    }
    let replace = |text: &str, name: &str, value: &str| {
        text.replace(&format!("${{{name}}}"), value)
            .replace(&format!("${name}"), value)
    };
    let text = replace(text, "ORIGIN", &origin.to_string_lossy());
    let text = replace(&text, "PLATFORM", std::env::consts::ARCH);
    if !text.contains("$LIB") && !text.contains("${LIB}") {
        return vec![text];
    }
    let triplet = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    [triplet.as_str(), "lib64", "lib"]
        .map(|folder| replace(&text, "LIB", folder))
        .to_vec()
}

fn usual_folders(machine: Machine) -> Vec<String> {
    let mut folders = Vec::new();
    if machine == Machine::here() {
        let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
        folders.extend([format!("/lib/{triplet}"), format!("/usr/lib/{triplet}")]);
    }
    let plain = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];
    folders.extend(plain.map(str::to_owned));
    folders
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use super::*;

    #[derive(Default)]
    struct Made {
        files: HashMap<PathBuf, Rc<Elf>>,
        cached: HashMap<String, Vec<PathBuf>>,
    }

    impl Files for Made {
        fn elf(&self, path: &Path) -> Option<Rc<Elf>> {
            self.files.get(path).cloned()
        }
        fn cached(&self, name: &str) -> Vec<PathBuf> {
            self.cached.get(name).cloned().unwrap_or_default()
        }
    }

    fn elf(needed: &[&str]) -> Elf {
        Elf {
            machine: Machine::here(),
            is_loadable: true,
            interpreter: None,
            needed: needed.iter().map(|&name| name.to_owned()).collect(),
            rpath: Vec::new(),
            runpath: Vec::new(),
            soname: None,
            exported: BTreeSet::new(),
            wanted: BTreeSet::new(),
            private: BTreeSet::new(),
            versions: Default::default(),
            versions_wanted: Default::default(),
            names_wanted: Default::default(),
        }
    }

    impl Made {
        fn put(&mut self, path: &str, elf: Elf) {
            self.files.insert(path.into(), Rc::new(elf));
        }
        fn of(&self, program: &Elf, search: &Search) -> Vec<(String, Option<String>)> {
            libraries(Path::new("/app/bin/program"), program, search, self)
                .into_iter()
                .map(|library| {
                    let path = library.path.map(|path| path.to_string_lossy().into_owned());
                    (library.name, path)
                })
                .collect()
        }
    }

    fn pairs(wanted: &[(&str, &str)]) -> Vec<(String, Option<String>)> {
        wanted
            .iter()
            .map(|(name, path)| {
                let path = (!path.is_empty()).then(|| (*path).to_owned());
                ((*name).to_owned(), path)
            })
            .collect()
    }

    #[test]
    fn breadth_first_and_each_once() {
        let mut made = Made::default();
        made.put("/usr/lib/a.so", elf(&["c.so", "b.so"]));
        made.put("/usr/lib/b.so", elf(&["a.so", "c.so"]));
        made.put("/usr/lib/c.so", elf(&["gone.so"]));
        let wanted = pairs(&[
            ("a.so", "/usr/lib/a.so"),
            ("b.so", "/usr/lib/b.so"),
            ("c.so", "/usr/lib/c.so"),
            ("gone.so", ""),
        ]);
        assert_eq!(made.of(&elf(&["a.so", "b.so"]), &Search::default()), wanted);
    }

    #[test]
    fn a_library_is_known_by_its_own_name_too() {
        let mut made = Made::default();
        made.put(
            "/mine/libx.so",
            Elf {
                soname: Some("libgomp.so.1".to_owned()),
                ..elf(&[])
            },
        );
        made.put("/usr/lib/libgomp.so.1", elf(&[]));
        let search = Search::new(None, Some("/mine/libx.so"));
        let got = made.of(&elf(&["libgomp.so.1"]), &search);
        assert_eq!(got, pairs(&[("/mine/libx.so", "/mine/libx.so")]));
    }

    #[test]
    fn folders_in_the_order_of_the_loader() {
        let places = [
            "/app/bin/../rpath/x.so",
            "/path/x.so",
            "/cache/x.so",
            "/lib64/x.so",
        ];
        let program = Elf {
            rpath: vec!["$ORIGIN/../rpath".to_owned()],
            ..elf(&["x.so"])
        };
        let newer = Elf {
            rpath: Vec::new(),
            runpath: vec!["${ORIGIN}/../rpath".to_owned()],
            ..program.clone()
        };
        let search = Search::new(Some("/none:/path"), None);
        // With each place in turn taken away.
        for first in 0..places.len() {
            let mut made = Made::default();
            for place in &places[first..] {
                made.put(place, elf(&[]));
            }
            made.cached
                .insert("x.so".to_owned(), vec!["/cache/x.so".into()]);
            let got = made.of(&program, &search);
            assert_eq!(got, pairs(&[("x.so", places[first])]));
            // The newer kind comes after LD_LIBRARY_PATH.
            let wanted = if first == 0 { places[1] } else { places[first] };
            assert_eq!(made.of(&newer, &search), pairs(&[("x.so", wanted)]));
        }
    }

    #[test]
    fn rpath_of_the_program_counts_for_its_libraries() {
        let mut made = Made::default();
        made.put("/r/a.so", elf(&["b.so"]));
        made.put("/r/b.so", elf(&[]));
        let program = |rpath: &str, runpath: &str| Elf {
            rpath: Search::new(Some(rpath), None).library_path,
            runpath: Search::new(Some(runpath), None).library_path,
            ..elf(&["a.so"])
        };
        let old = made.of(&program("/r", "/elsewhere"), &Search::default());
        assert_eq!(
            old,
            pairs(&[("a.so", "")]),
            "the newer kind hides the older"
        );
        let old = Elf {
            runpath: Vec::new(),
            ..program("/r", "")
        };
        let wanted = pairs(&[("a.so", "/r/a.so"), ("b.so", "/r/b.so")]);
        assert_eq!(made.of(&old, &Search::default()), wanted);
        let newer = Elf {
            rpath: Vec::new(),
            ..program("", "/r")
        };
        let wanted = pairs(&[("a.so", "/r/a.so"), ("b.so", "")]);
        assert_eq!(made.of(&newer, &Search::default()), wanted);
    }

    #[test]
    fn libraries_of_another_machine_are_passed_over() {
        let mut made = Made::default();
        let mut other = elf(&[]);
        other.machine.is_64 = !other.machine.is_64;
        made.put("/cache/x.so", other);
        made.put("/lib/x.so", elf(&[]));
        made.cached
            .insert("x.so".to_owned(), vec!["/cache/x.so".into()]);
        let got = made.of(&elf(&["x.so"]), &Search::default());
        assert_eq!(got, pairs(&[("x.so", "/lib/x.so")]));
    }

    #[test]
    fn an_endless_chain_ends() {
        /// Each library needs the next.
        struct Endless;
        impl Files for Endless {
            fn elf(&self, path: &Path) -> Option<Rc<Elf>> {
                let name = path.file_name()?.to_str()?;
                Some(Rc::new(elf(&[&format!(
                    "{}",
                    name.parse::<u32>().ok()? + 1
                )])))
            }
            fn cached(&self, _: &str) -> Vec<PathBuf> {
                Vec::new()
            }
        }
        let got = libraries(Path::new("/0"), &elf(&["1"]), &Search::default(), &Endless);
        assert_eq!(got.len(), LIBRARIES_MAX);
    }
}
