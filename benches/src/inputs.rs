//! What the programs work on: made once, the same every time.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Text of this size keeps two CPUs busy for one to three seconds.
const TEXT_BYTES: usize = 64 << 20;
const SOURCES: usize = 60;
const FUNCTIONS: usize = 6;

/// Marsaglia's xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }
}

/// A text of lines of made-up words, few of which are frequent.
pub fn text(folder: &Path) -> io::Result<PathBuf> {
    once(&folder.join("text.txt"), |path| {
        let mut random = Random(0x00a1_da41);
        let words: Vec<String> = (0..50_000)
            .map(|_| {
                let letters = 2 + random.below(9);
                (0..letters)
                    .map(|_| char::from(b'a' + (random.below(26) as u8)))
                    .collect()
            })
            .collect();
        let mut file = BufWriter::new(File::create(path)?);
        let mut written = 0;
        while written < TEXT_BYTES {
            let in_line = 3 + random.below(6);
            for at in 0..in_line {
                let range = 1 + random.below(words.len() as u64);
                let word = &words[random.below(range) as usize];
                let end = if at + 1 == in_line { '\n' } else { ' ' };
                write!(file, "{word}{end}")?;
                written += word.len() + 1;
            }
        }
        file.flush()
    })
}

/// A C program of many small sources, with a makefile.
pub fn project(folder: &Path) -> io::Result<PathBuf> {
    once(&folder.join("project"), |path| {
        if path.exists() {
            fs::remove_dir_all(path)?;
        }
        fs::create_dir(path)?;
        for number in 0..SOURCES {
            fs::write(path.join(format!("part{number}.c")), source(number))?;
        }
        let mut main = String::from("#include <stdio.h>\n");
        for number in 0..SOURCES {
            let _ = writeln!(main, "int part{number}(int);");
        }
        main.push_str("int main(int argc, char **argv)\n{\n    (void)argv;\n    int sum = argc;\n");
        for number in 0..SOURCES {
            let _ = writeln!(main, "    sum += part{number}(sum);");
        }
        main.push_str("    printf(\"%d\\n\", sum);\n    return 0;\n}\n");
        fs::write(path.join("main.c"), main)?;
        let makefile = "CFLAGS = -O2\n\
                        objects := $(patsubst %.c,%.o,$(wildcard *.c))\n\
                        program: $(objects)\n\t$(CC) -o $@ $^\n";
        fs::write(path.join("Makefile"), makefile)
    })
}

fn source(number: usize) -> String {
    let mut random = Random(1 + number as u64);
    let mut text = String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
    for function in 0..FUNCTIONS {
        let (a, b, c) = (
            random.below(97) + 3,
            random.below(31) + 1,
            random.below(1000),
        );
        let _ = write!(
            text,
            "\nstatic int f{function}(int x, char *s)\n{{\n    int table[{a}];\n    \
             for (int i = 0; i < {a}; i++)\n        table[i] = (x + i * {b}) ^ {c};\n    \
             switch (x % 5) {{\n    case 0: return table[x % {a}] + (int)strlen(s);\n    \
             case 1: snprintf(s, 64, \"%d %d\", table[0], x); break;\n    \
             case 2: return atoi(s) * {b};\n    \
             case 3: memmove(s, s + 1, strlen(s)); break;\n    \
             default: qsort(table, {a}, sizeof(int), 0); }}\n    \
             return table[{b} % {a}] / (1 + abs(x));\n}}\n"
        );
    }
    let _ = write!(
        text,
        "\nint part{number}(int x)\n{{\n    char s[80] = \"12\";\n"
    );
    for function in 0..FUNCTIONS {
        let _ = writeln!(text, "    x ^= f{function}(x, s);");
    }
    text.push_str("    return x;\n}\n");
    text
}

/// Makes `path` beside itself first, so that half of it is never taken for the whole.
fn once(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<PathBuf> {
    if !path.exists() {
        let unfinished = path.with_extension("unfinished");
        make(&unfinished)?;
        fs::rename(&unfinished, path)?;
    }
    Ok(path.to_owned())
}
