//! An S3 server for tests: a real one, in threads of this process, over a folder. It can be told to fail.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Frame, Incoming};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::{S3ServiceBuilder, SharedS3Service};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// Who may ask.
pub const ACCESS_KEY: &str = "who";
/// With which word.
pub const SECRET_KEY: &str = "secret";

/// What goes wrong with answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// They come after this time.
    Slow(Duration),
    /// Half of the content comes, then the connection ends.
    Cut,
    /// Half of the content comes, then nothing, and the connection stays.
    Stuck,
    /// The content comes twice, as an answer that is whole.
    Longer,
    /// Half of the content comes, as an answer that is whole.
    Shorter,
    /// It is the server's fault.
    Unavailable,
    /// The answer says that it is all of the object, whatever was asked for.
    Whole,
}

/// A request, as far as tests want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// `GET`, ...
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Which bytes.
    pub range: Option<String>,
    /// Of which version.
    pub if_match: Option<String>,
}

#[derive(Debug)]
struct State {
    fault: Fault,
    asked: Vec<Asked>,
    now: usize,
    at_once: usize,
}

/// A server that runs. It ends when it is dropped.
pub struct Server {
    runtime: Option<Runtime>,
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Server {
    /// Serves a folder: its folders are the buckets.
    ///
    /// # Errors
    /// When the system refuses a thread or a port of this host.
    pub fn start(folder: &Path) -> io::Result<Server> {
        let files = s3s_fs::FileSystem::new(folder)
            .map_err(|error| io::Error::other(format!("{error:?}")))?;
        let mut service = S3ServiceBuilder::new(files);
        service.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = service.build().into_shared();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State {
            fault: Fault::None,
            asked: Vec::new(),
            now: 0,
            at_once: 0,
        }));
        runtime.spawn(accept(listener, service, Arc::clone(&state)));
        Ok(Server {
            runtime: Some(runtime),
            address,
            state,
        })
    }

    /// The variables by which clients find it and are let in.
    pub fn variables(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
        ]
    }

    /// From now on answers fail in this way.
    pub fn fail(&self, fault: Fault) {
        self.state().fault = fault;
    }

    /// What was asked since the last call.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.state().asked)
    }

    /// How many requests there were at the same time, at most.
    pub fn at_once(&self) -> usize {
        self.state().at_once
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(10));
        }
    }
}

async fn accept(listener: TcpListener, service: SharedS3Service, state: Arc<Mutex<State>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (service, state) = (service.clone(), Arc::clone(&state));
        let answer = move |request| answer(service.clone(), Arc::clone(&state), request);
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new();
            let connection = connection.serve_connection(TokioIo::new(stream), service_fn(answer));
            // Clients come and go as they like.
            let _ = connection.await;
        });
    }
}

type Body = BoxBody<Bytes, io::Error>;

fn full(bytes: Bytes) -> Body {
    Full::new(bytes)
        .map_err(|never: Infallible| match never {})
        .boxed()
}

/// Counts itself as long as it is there.
struct Now(Arc<Mutex<State>>);

impl Now {
    fn new(state: Arc<Mutex<State>>, request: &Request<Incoming>) -> (Now, Fault) {
        let header = |name: &str| {
            let value = request.headers().get(name)?.to_str().ok()?;
            Some(value.to_owned())
        };
        let asked = Asked {
            method: request.method().to_string(),
            path: request.uri().to_string(),
            range: header("range"),
            if_match: header("if-match"),
        };
        let fault = {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            state.asked.push(asked);
            state.now += 1;
            state.at_once = state.at_once.max(state.now);
            state.fault
        };
        (Now(state), fault)
    }
}

impl Drop for Now {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).now -= 1;
    }
}

async fn answer(
    service: SharedS3Service,
    state: Arc<Mutex<State>>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (_now, fault) = Now::new(state, &request);
    match fault {
        Fault::Slow(time) => tokio::time::sleep(time).await,
        Fault::Unavailable => {
            let mut answer = Response::new(full(Bytes::from_static(
                b"<Error><Code>SlowDown</Code></Error>",
            )));
            *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            return Ok(answer);
        }
        _ => {}
    }
    let answer = match service.call(request).await {
        Ok(answer) => answer,
        Err(error) => {
            let mut answer = Response::new(full(Bytes::from(error.to_string())));
            *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            return Ok(answer);
        }
    };
    let (mut head, body) = answer.into_parts();
    let content = match body.collect().await {
        Ok(content) => content.to_bytes(),
        Err(_) => Bytes::new(),
    };
    let half = content.slice(..content.len() / 2);
    let body = match fault {
        Fault::Cut => Parts::of([Ok(half), Err(io::Error::other("cut"))], false),
        Fault::Stuck => Parts::of([Ok(half)], true),
        Fault::Longer => sized(&mut head, [&content[..], &content[..]].concat().into()),
        Fault::Shorter => sized(&mut head, half),
        Fault::Whole => {
            head.status = StatusCode::OK;
            head.headers.remove("content-range");
            full(content)
        }
        Fault::None | Fault::Slow(_) | Fault::Unavailable => full(content),
    };
    Ok(Response::from_parts(head, body))
}

/// Content of another length, which the headers name, and a range that they still name as if it were right.
fn sized(head: &mut hyper::http::response::Parts, content: Bytes) -> Body {
    head.headers.insert("content-length", content.len().into());
    full(content)
}

/// Content in parts, after which the end may not come.
struct Parts {
    left: VecDeque<io::Result<Bytes>>,
    stays: bool,
}

impl Parts {
    fn of<const N: usize>(parts: [io::Result<Bytes>; N], stays: bool) -> Body {
        Parts {
            left: parts.into(),
            stays,
        }
        .boxed()
    }
}

impl hyper::body::Body for Parts {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.left.pop_front() {
            Some(part) => Poll::Ready(Some(part.map(Frame::data))),
            // Nobody wakes it: the connection ends with the server.
            None if self.stays => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}
