//! Names of objects: `s3://BUCKET/KEY`, or `file:///PATH` for a file that is read in the same way. Pure.

use std::path::Path;

use crate::{Error, Result};

const S3: &str = "s3://";
const FILE: &str = "file://";

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// The bucket; none for a file.
    pub bucket: Option<String>,
    /// Its key, or the path of the file without the first slash.
    pub key: object_store::path::Path,
}

/// Whether this names an object rather than a file by its path.
pub fn is_object(path: &Path) -> bool {
    let starts = |with: &str| {
        path.as_os_str()
            .as_encoded_bytes()
            .starts_with(with.as_bytes())
    };
    starts(S3) || starts(FILE)
}

impl Location {
    /// What a name means.
    pub fn parse(name: &str) -> Result<Location> {
        let wrong = |why: &str| Error::Name {
            name: name.to_owned(),
            why: why.to_owned(),
        };
        let (bucket, key) = if let Some(rest) = name.strip_prefix(S3) {
            let (bucket, key) = rest.split_once('/').ok_or_else(|| wrong("it has no key"))?;
            // It becomes a part of the server's name or of a path.
            let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
            if bucket.is_empty() || !bucket.bytes().all(is_good) || bucket.starts_with('.') {
                return Err(wrong("no bucket is called so"));
            }
            (Some(bucket.to_owned()), key)
        } else if let Some(rest) = name.strip_prefix(FILE) {
            let path = rest.strip_prefix('/');
            (
                None,
                path.ok_or_else(|| wrong("the path must begin with a slash"))?,
            )
        } else {
            return Err(wrong("it does not begin with s3://"));
        };
        if key.is_empty() || key.ends_with('/') {
            return Err(wrong("it is the name of a folder"));
        }
        // Never made to fit: that would be the key of another object.
        let parsed =
            object_store::path::Path::parse(key).map_err(|error| wrong(&error.to_string()))?;
        if parsed.as_ref() != key {
            return Err(wrong("its key begins with a slash"));
        }
        Ok(Location {
            bucket,
            key: parsed,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_read() {
        let read = |name: &str| {
            let location = Location::parse(name).unwrap();
            (location.bucket, location.key.to_string())
        };
        let bucket = |name: &str| Some(name.to_owned());
        assert_eq!(read("s3://b/vm.ami"), (bucket("b"), "vm.ami".to_owned()));
        assert_eq!(
            read("s3://my.bucket-1/a/b c/vm"),
            (bucket("my.bucket-1"), "a/b c/vm".to_owned())
        );
        assert_eq!(read("file:///srv/vm.ami"), (None, "srv/vm.ami".to_owned()));
        for wrong in [
            "",
            "s3://",
            "s3://b",
            "s3://b/",
            "s3:///key",
            "s3://b//key",
            "s3://b/a//c",
            "s3://b/a/",
            "s3://b/../c",
            "s3://b/a/./c",
            "s3://a b/c",
            "s3://u@h/c",
            "s3://../c",
            "file://host/a",
            "file://",
            "file:///",
            "vm.ami",
            "S3://b/c",
        ] {
            assert!(
                matches!(Location::parse(wrong), Err(Error::Name { .. })),
                "{wrong}"
            );
        }
    }

    #[test]
    fn files_are_told_from_objects() {
        assert!(is_object(Path::new("s3://b/c")) && is_object(Path::new("file:///c")));
        assert!(
            !is_object(Path::new("/s3://b/c"))
                && !is_object(Path::new("s3:/b"))
                && !is_object(Path::new("-"))
        );
    }

    proptest! {
        #[test]
        fn what_is_accepted_is_meant_to_the_letter(name in "(s3|file)://[a-z./%é#? \\\\]{0,20}") {
            if let Ok(location) = Location::parse(&name) {
                let meant = match &location.bucket {
                    Some(bucket) => format!("s3://{bucket}/{}", location.key),
                    None => format!("file:///{}", location.key),
                };
                prop_assert_eq!(meant, name);
                prop_assert!(location.key.parts().all(|part| !["", ".", ".."].contains(&part.as_ref())));
            }
        }
    }
}
