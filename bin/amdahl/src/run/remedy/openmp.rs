//! GCC's OpenMP runtime is replaced by ours, which does not spin while others could run.

use std::path::Path;

use crate::run::facts::{Beyond, Facts, Image, Kind, Runtime, Starts};
use crate::run::started::Manner;

use super::{Outcome, Remedy, Verdict, are_more_than};

/// Preloads our `libgomp.so.1`, or has the loader find it first.
///
/// The loader takes a library that is there already for one that is asked for by the same name, so
/// that GCC's is not even loaded. A copy under another name is loaded, but the names in it are
/// looked for in all libraries in their order, and the preloaded ones come first.
///
/// A preloaded library is loaded into all that a shell starts: into `sed` as well, at some cost, and one of 32 bits says that it is not.
/// So what is started unseen is given the folder of ours instead, before all others: who does not ask for `libgomp.so.1` sees nothing of
/// that, and who is of another machine passes it by in silence.
pub struct OpenMp;

/// The variable that the loader reads.
const PRELOAD: &str = "LD_PRELOAD";
/// Where the loader looks first, but for `DT_RPATH`.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// Has the runtime print at the end what it counted.
const STATS: &str = "AMDAHL_OMP_STATS";

impl Remedy for OpenMp {
    fn name(&self) -> &'static str {
        "openmp"
    }

    fn about(&self) -> &'static str {
        "GCC's OpenMP runtime (libgomp) is replaced by one that hands CPUs over at barriers"
    }

    fn judge(&self, facts: &Facts, _: &[Verdict]) -> Verdict {
        let of_kind = |kinds: &[Kind]| -> Option<&Runtime> {
            let runtimes = &facts.program.runtimes;
            runtimes
                .iter()
                .find(|runtime| kinds.contains(&runtime.kind))
        };
        let starts = facts.program.starts.as_ref();
        let mut replaceable = of_kind(&[Kind::Gomp, Kind::GompCopy]);
        // Who asks for it by name has it preloaded, which reaches more.
        let mut is_by_path = starts.is_some() && !facts.asks_for(self.name());
        if is_by_path && let Some(runtime) = not_reached(facts) {
            is_by_path = false;
            replaceable = Some(runtime);
        }
        let inside = of_kind(&[Kind::GompInside]);
        let is_asked = facts.asks_for(self.name());
        let because = match (starts, replaceable.or(inside)) {
            (Some(starts), Some(runtime)) => {
                format!("{}; {}", runtime.via, wherever(facts, starts))
            }
            (Some(starts), None) => wherever(facts, starts),
            (None, Some(runtime)) => runtime.via.clone(),
            (None, None) if is_asked => "asked for by --with".to_owned(),
            (None, None) => return self.not_needed(facts, nothing_found(facts)),
        };
        let impossible = |why: String| Verdict::new(self, Outcome::Impossible, why);
        let is_seen = is_asked || replaceable.or(inside).is_some();
        if let Some(why) = cannot_load(facts) {
            return match is_seen {
                true => impossible(why),
                false => self.not_needed(facts, why),
            };
        }
        if replaceable.is_none()
            && let Some(runtime) = inside.filter(|_| starts.is_none())
            && !facts.asks_for(self.name())
        {
            return impossible(format!(
                "{}: code that is linked in cannot be replaced; link it with -fopenmp and without \
                 -static or libgomp.a",
                runtime.via
            ));
        }
        if let Some(mkl) = of_kind(&[Kind::Mkl])
            && !facts.asks_for(self.name())
        {
            return Verdict::new(
                self,
                Outcome::LeftAlone,
                format!(
                    "{}: MKL asks for omp_* by names without a version, which it would find in ours in the middle of \
                     Intel's runtime; --with openmp has it so (with MKL_THREADING_LAYER=GNU)",
                    mkl.via
                ),
            );
        }
        let beyond = &facts.program.beyond;
        let needed = beyond.iter().find(|beyond| beyond.is_needed);
        if let Some(beyond) = needed.or(beyond.first().filter(|_| !facts.asks_for(self.name()))) {
            let Beyond { who, what, .. } = beyond;
            return impossible(if beyond.is_needed {
                format!("{who} wants {what} of libgomp, which ours does not have")
            } else {
                format!(
                    "{who} has code for accelerators ({what}), which ours would run on the CPUs; \
                     --with openmp has it so"
                )
            });
        }
        let own = match &facts.libgomp {
            Ok(own) => own,
            Err(why) if is_seen => return impossible(why.clone()),
            Err(why) => return self.not_needed(facts, why.clone()),
        };
        let Some(own_text) = own.to_str() else {
            return impossible(format!(
                "the path of {} is not UTF-8; install amdahl elsewhere",
                own.display()
            ));
        };
        if let Some(name) = [PRELOAD, LIBRARY_PATH]
            .into_iter()
            .find(|name| facts.is_unreadable(name))
        {
            return impossible(format!("{name} is set to something that is not UTF-8"));
        }
        let preloaded = facts.variable(PRELOAD).unwrap_or("").trim();
        let is_gomp = |name: &str| {
            name.rsplit('/')
                .next()
                .is_some_and(|file| file.starts_with("libgomp"))
        };
        let is_there = is_there(facts, own) && !(is_asked && starts.is_some())
            || names(preloaded).any(|name| Path::new(name) == own);
        if !is_there && names(preloaded).any(is_gomp) {
            return Verdict::new(
                self,
                Outcome::LeftAlone,
                format!("{PRELOAD} has a libgomp of your own: {preloaded}"),
            );
        }
        let mut verdict = if is_there {
            Verdict::new(
                self,
                Outcome::LeftAlone,
                format!("{own_text} is loaded already"),
            )
        } else if !is_by_path {
            if own_text.contains([':', ' ']) {
                return impossible(format!(
                    "{own_text} has a space or colon in its path, at which the loader divides \
                     {PRELOAD}; install amdahl elsewhere"
                ));
            }
            let mut verdict = Verdict::new(self, Outcome::Applied, because);
            verdict.set(PRELOAD, joined([preloaded, own_text]));
            if let Some(starts) = starts {
                verdict.note(format!(
                    "it is loaded into all programs {}, for about 0.2 ms of CPU time each; those of 32 bits say that they ignore it",
                    wherever(facts, starts)
                ));
            }
            verdict
        } else if let Some(folder) = &facts.library_path {
            let mut verdict = Verdict::new(self, Outcome::Applied, because);
            let before = facts.variable(LIBRARY_PATH).unwrap_or("").trim();
            verdict.set(LIBRARY_PATH, joined([folder, before]));
            verdict.note(
                "this reaches all that ask for libgomp.so.1, and nobody else; a copy under another name, one that is opened by its path \
                 or that a DT_RPATH leads to is reached by --with openmp, which preloads ours into every program",
            );
            verdict
        } else {
            let why = format!(
                "{own_text} is beside other libraries, so that its folder is not put before others; --with openmp preloads it"
            );
            return match is_seen {
                true => impossible(why),
                false => self.not_needed(facts, why),
            };
        };
        if facts.stats {
            verdict.set(STATS, "true");
        }
        if !verdict.changes.is_empty() {
            verdict.outcome = Outcome::Applied;
        }
        tell_of_too_many_threads(facts, &mut verdict);
        tell_of_own_numbers(facts, &mut verdict);
        if let Some(copy) = of_kind(&[Kind::GompCopy]) {
            verdict.note(format!(
                "{} is loaded as well, but not called, unless a library is opened with \
                 RTLD_DEEPBIND or linked with -Bsymbolic",
                copy.path.display()
            ));
        }
        if let Some(runtime) = inside {
            verdict.note(format!("{}: that copy stays what it is", runtime.via));
        }
        tell_of_packages(facts, &mut verdict);
        verdict
    }
}

impl OpenMp {
    fn not_needed(&self, facts: &Facts, why: String) -> Verdict {
        let mut verdict = Verdict::new(self, Outcome::NotNeeded, why);
        tell_of_packages(facts, &mut verdict);
        verdict
    }
}

/// `first:second`, of those that are something.
fn joined(parts: [&str; 2]) -> String {
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(":")
}

/// `in whatever ./train.sh starts`.
fn wherever(facts: &Facts, starts: &Starts) -> String {
    let typed = &facts.program.typed;
    match starts.manner {
        Manner::Starts => format!("in whatever {typed} starts"),
        Manner::Opens => format!("in whatever {typed} opens or starts"),
    }
}

/// A runtime in the place of which the loader would not find ours by its folder alone.
fn not_reached(facts: &Facts) -> Option<&Runtime> {
    let mut runtimes = facts.program.runtimes.iter();
    runtimes.find(|runtime| {
        matches!(runtime.kind, Kind::Gomp | Kind::GompCopy) && !runtime.is_reached_by_path
    })
}

/// Whether the program gets our runtime in the place of GCC's: by what was `said`, or without us.
pub fn is_ours(facts: &Facts, said: &[Verdict]) -> bool {
    let is_set = said
        .iter()
        .any(|verdict| verdict.sets(PRELOAD) || verdict.sets(LIBRARY_PATH));
    let is_there = || matches!(&facts.libgomp, Ok(own) if is_there(facts, own));
    cannot_load(facts).is_none() && (is_set || is_there())
}

/// The libraries in a value of [`PRELOAD`].
fn names(value: &str) -> impl Iterator<Item = &str> {
    value.split([':', ' '])
}

/// The program loads `own` whatever we do.
fn is_there(facts: &Facts, own: &Path) -> bool {
    let before = facts.variable(PRELOAD).unwrap_or("").trim();
    let mut runtimes = facts.program.runtimes.iter();
    let path = facts.variable(LIBRARY_PATH).unwrap_or("").trim();
    let is_first = || {
        let first = path.split([':', ';']).next();
        facts.program.starts.is_some()
            && facts.library_path.as_deref() == first
            && not_reached(facts).is_none()
    };
    names(before).any(|name| Path::new(name) == own)
        || runtimes.any(|runtime| runtime.path == own)
        || is_first()
}

/// A program may rely on having as many threads as it was told to have: only who knows it can let it have fewer.
fn tell_of_too_many_threads(facts: &Facts, verdict: &mut Verdict) {
    let cpus = facts.machine.cpus();
    let Some(value) = facts.variable("OMP_NUM_THREADS") else {
        return;
    };
    let is_said = ["OMP_DYNAMIC", "AMDAHL_OMP_DYNAMIC"]
        .iter()
        .any(|name| facts.variable(name).is_some());
    if are_more_than(cpus, value) && !is_said {
        verdict.note(format!(
            "OMP_NUM_THREADS={value} is more than can run at once ({cpus}); if the program works with any number, \
             OMP_DYNAMIC=true has each region use no more"
        ));
    }
}

/// What a clause says is not seen in a program, nor whether it is executed.
fn tell_of_own_numbers(facts: &Facts, verdict: &mut Verdict) {
    let (cpus, all) = (facts.machine.cpus(), facts.machine.online);
    if cpus < all && facts.variable("AMDAHL_OMP_DYNAMIC").is_none() {
        verdict.note(format!(
            "a program that says itself how many threads it has (num_threads, omp_set_num_threads) has them, also where no more than \
             {cpus} can run at once; --stats tells whether it did, and what to set"
        ));
    }
}

fn tell_of_packages(facts: &Facts, verdict: &mut Verdict) {
    if facts.program.is_looked_at_in_part {
        verdict.note("its packages have too many files to look at all of them");
    }
}

fn nothing_found(facts: &Facts) -> String {
    match &facts.program.image {
        Image::Static => {
            "it is linked statically and has no OpenMP in it that can be seen".to_owned()
        }
        Image::Unknown(why) => format!("{why}: what it loads is not known; --with openmp tries"),
        _ => {
            "it loads no OpenMP runtime of GCC that can be seen; if it opens one later, or starts \
              programs that do: --with openmp"
                .to_owned()
        }
    }
}

/// Why the loader would not take our library, of the program or of those that it starts.
fn cannot_load(facts: &Facts) -> Option<String> {
    let path = facts
        .program
        .interpreters
        .last()
        .unwrap_or(&facts.program.path);
    let path = path.display();
    match &facts.program.image {
        Image::Dynamic | Image::Unknown(_) => None,
        // Who is started by it may have another loader.
        Image::Static if facts.program.starts.is_some() => None,
        Image::Static => Some(format!(
            "{path} is linked statically: there is no loader that could give it another library; \
             link it without -static"
        )),
        Image::OtherLoader(loader) => Some(format!(
            "{path} is loaded by {loader}, and our library is for glibc's loader"
        )),
        Image::OtherMachine(machine) => Some(format!(
            "{path} is for {machine}, and our library is for {}",
            std::env::consts::ARCH
        )),
    }
}
