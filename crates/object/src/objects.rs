//! The stores whose objects are asked for, and the one runtime in which that happens.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use amdahl_image::{Shelf, Store};
use futures_util::StreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use crate::kept::Kept;
use crate::location::Location;
use crate::object::Object;
use crate::{Error, Result};

/// How much is asked for at once, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long a request may take with all that is tried again; its wait for the others included.
    pub timeout: Duration,
    /// Requests at once; others wait.
    pub requests: usize,
    /// Memory for what was fetched beside what was asked for, of all objects together.
    pub kept_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            timeout: Duration::from_secs(30),
            requests: 32,
            kept_bytes: 16 << 20,
        }
    }
}

/// What is tried again: all that passes by itself. With these pauses that takes some five seconds, so that a server that is not there
/// is told before the time is over.
const TRIES_AGAIN: usize = 6;
const PAUSES: BackoffConfig = BackoffConfig {
    init_backoff: Duration::from_millis(100),
    max_backoff: Duration::from_secs(2),
    base: 2.0,
};

/// Objects of a folder that are looked at when a base is looked for.
const BESIDE_MAX: usize = 4096;

/// What all objects share.
pub(crate) struct Shared {
    /// Taken when it is dropped.
    runtime: Option<Runtime>,
    turns: Semaphore,
    limits: Limits,
    numbers: AtomicU64,
    pub kept: Kept,
}

impl Shared {
    /// Waits for an answer, never longer than the limit.
    pub fn wait<T>(&self, answer: impl Future<Output = Result<T>>) -> Result<T> {
        let limit = self.limits.timeout;
        let in_turn = async {
            let _turn = self.turns.acquire().await;
            answer.await
        };
        let runtime = self.runtime.as_ref().expect("until it is dropped");
        let waited = runtime.block_on(async { tokio::time::timeout(limit, in_turn).await });
        waited.unwrap_or(Err(Error::Late(limit)))
    }

    pub fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A name that is being looked up would be waited for.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Opens objects. One for a program: it has a thread, connections and memory that all of its objects share.
pub struct Objects {
    shared: Arc<Shared>,
    settings: Vec<(String, String)>,
    /// By bucket; files have no bucket.
    stores: Mutex<HashMap<Option<String>, Arc<dyn ObjectStore>>>,
}

impl Objects {
    /// With the settings that the environment has when a bucket is first used (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`, ...).
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn new(limits: Limits) -> Result<Objects> {
        // Another part of the program may have chosen before, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("objects")
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| Error::System {
            doing: "starting a thread for an object store",
            why: error.to_string(),
        })?;
        Ok(Objects {
            shared: Arc::new(Shared {
                runtime: Some(runtime),
                turns: Semaphore::new(limits.requests.clamp(1, Semaphore::MAX_PERMITS)),
                limits,
                numbers: AtomicU64::new(0),
                kept: Kept::new(limits.kept_bytes),
            }),
            settings: Vec::new(),
            stores: Mutex::default(),
        })
    }

    /// A setting that goes before what the environment says, by the name of the variable.
    ///
    /// # Errors
    /// When there is no such setting.
    pub fn set(mut self, name: &str, value: &str) -> Result<Objects> {
        key(name)?;
        self.settings.push((name.to_owned(), value.to_owned()));
        Ok(self)
    }

    /// Takes this store for a bucket.
    pub fn with_store(self, bucket: &str, store: Arc<dyn ObjectStore>) -> Objects {
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        stores.insert(Some(bucket.to_owned()), store);
        drop(stores);
        self
    }

    /// Opens the object of a name (`s3://BUCKET/KEY`): its version and its size are those of this moment.
    ///
    /// # Errors
    /// When there is none, it may not be read, or nobody answers in time.
    pub fn object(&self, name: &str) -> Result<Object> {
        let location = Location::parse(name)?;
        let store = self.store(location.bucket)?;
        Object::open(Arc::clone(&self.shared), store, location.key)
    }

    /// Names of the objects in the same folder: whose keys are the same up to the last slash. Of the first 4096 that the store tells of.
    ///
    /// # Errors
    /// When they may not be listed, or nobody answers in time.
    pub fn names_beside(&self, name: &str) -> Result<Vec<String>> {
        let location = Location::parse(name)?;
        let store = self.store(location.bucket.clone())?;
        let prefix = location.key.parent().unwrap_or_default();
        let keys = self.shared.wait(async {
            let mut keys = Vec::new();
            let mut all = store.list(Some(&prefix)).take(BESIDE_MAX);
            while let Some(found) = all.next().await {
                let key = found.map_err(Error::of)?.location;
                if key.parent().unwrap_or_default() == prefix {
                    keys.push(key);
                }
            }
            Ok(keys)
        })?;
        let name = |key: object_store::path::Path| match &location.bucket {
            Some(bucket) => format!("s3://{bucket}/{key}"),
            None => format!("file:///{key}"),
        };
        Ok(keys.into_iter().map(name).collect())
    }

    fn store(&self, bucket: Option<String>) -> Result<Arc<dyn ObjectStore>> {
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = stores.get(&bucket) {
            return Ok(Arc::clone(store));
        }
        let store: Arc<dyn ObjectStore> = match &bucket {
            None => Arc::new(LocalFileSystem::new()),
            Some(bucket) => Arc::new(self.bucket(bucket)?),
        };
        stores.insert(bucket, Arc::clone(&store));
        Ok(store)
    }

    fn bucket(&self, bucket: &str) -> Result<object_store::aws::AmazonS3> {
        let timeout = self.shared.limits.timeout;
        let mut builder = AmazonS3Builder::from_env();
        for (name, value) in &self.settings {
            builder = builder.with_config(key(name)?, value);
        }
        // The limit is ours; the library is to have none that is nearly the same.
        let never = format!("{}s", (timeout * 2).as_secs().max(60));
        let client = |key| AmazonS3ConfigKey::Client(key);
        let said = |key| builder.get_config_value(&key);
        let endpoint = said(AmazonS3ConfigKey::S3Endpoint).or(said(AmazonS3ConfigKey::Endpoint));
        // With neither TLS nor a role to ask for: a machine without any certificates of authorities will do.
        if endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"))
            && said(AmazonS3ConfigKey::AccessKeyId).is_some()
        {
            let key = client(ClientConfigKey::NoSystemCertificates);
            builder = builder.with_config(key, "true");
        }
        builder
            .with_bucket_name(bucket)
            .with_config(client(ClientConfigKey::Timeout), &never)
            .with_retry(RetryConfig {
                backoff: PAUSES,
                max_retries: TRIES_AGAIN,
                retry_timeout: timeout / 2,
            })
            .build()
            .map_err(|error| Error::Settings(error.to_string()))
    }
}

fn key(name: &str) -> Result<AmazonS3ConfigKey> {
    let key = name.to_ascii_lowercase().parse();
    key.map_err(|_| Error::Settings(format!("{name:?} is no setting of S3")))
}

/// A path as the name of an object.
fn name(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| Error::Name {
        name: path.to_string_lossy().into_owned(),
        why: "it is not UTF-8".to_owned(),
    })
}

impl Shelf for Objects {
    fn open(&self, path: &Path) -> io::Result<Box<dyn Store>> {
        Ok(Box::new(self.object(name(path)?)?))
    }

    fn beside(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let names = self.names_beside(name(path)?)?;
        Ok(names.into_iter().map(PathBuf::from).collect())
    }
}
