//! The command line of `amdahl pager serve` as typed.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::tls::Tls;

pub(super) const SERVE_EXAMPLES: &str = "\
Examples:
  amdahl pager serve --image vm.ami --listen unix:/run/pager.sock
  amdahl pager serve --image vm.mem --listen unix:/run/pager.sock --fill
  amdahl pager serve --image vm.ami --listen unix:/run/pager.sock --fill=200M --max-vms 100 --memory 2G
  amdahl pager serve --image vm.mem --listen unix:/run/pager.sock --record-working-set first.txt
  amdahl pager pack vm.mem -o vm.ami --working-set first.txt
  amdahl pager serve --image vm.ami --listen systemd --json
  amdahl pager serve --image vm.ami --listen tcp:0.0.0.0:7000 --tls-certificate host.pem \\
    --tls-key host.key --tls-authorities ca.pem
  amdahl pager serve --image tcp:other-host:7000 --tls-certificate here.pem --tls-key here.key \\
    --tls-authorities ca.pem --listen unix:/run/pager.sock

The image may be in an S3-compatible store; who asks and where is said by AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT, AWS_ALLOW_HTTP (crates/object/README.md):
  amdahl pager serve --image s3://bucket/vm.ami --listen unix:/run/pager.sock

A new version takes over while VMs run, and another stands by in case it is killed:
  amdahl pager serve --image vm.ami --listen unix:/run/pager.sock --control unix:/run/pager.control
  amdahl pager serve --image vm.ami --replace unix:/run/pager.control
  amdahl pager serve --image vm.ami --standby-for unix:/run/pager.control
VMs that map the one copy of --share go on as well: what it has is one copy still, the rest comes
to each as its own; those that come later share a new one. VMs of `amdahl pager offload` cannot be
taken over.

Firecracker is told of the socket when it loads the snapshot:
  PUT /snapshot/load  {\"snapshot_path\": \"vm.state\",
    \"mem_backend\": {\"backend_type\": \"Uffd\", \"backend_path\": \"/run/pager.sock\"}}

SIGTERM or Ctrl-C, where VMs are served: no more are taken, what is missing of the others is fetched; then they go on without
this program. A second one: what is still missing is lost, and a VM that touches it is stopped. A third one
ends this program at once: VMs wait for ever where they touch missing memory.

Needs no privileges. The VMM does, to make the userfaultfd: access to /dev/userfaultfd
(setfacl -m u:USER:rw /dev/userfaultfd), or sysctl vm.unprivileged_userfaultfd=1.

The protocol, the lines that are printed and what is not served: docs/pager-serve.md.";

/// `amdahl pager serve`.
#[derive(Debug, Args)]
pub struct PagerServe {
    /// The memory that VMs begin with: an image or a raw memory file, s3://BUCKET/KEY for one in an
    /// object store, or tcp:HOST:PORT where another host serves it
    #[arg(long, value_name = "FILE")]
    pub image: PathBuf,
    /// Base of the image, or of one of its bases, if it does not lie beside it
    #[arg(long, value_name = "IMG")]
    pub base: Vec<PathBuf>,
    /// The file is raw memory, whatever it begins with
    #[arg(long, conflicts_with = "base")]
    pub raw: bool,
    /// unix:PATH, or systemd for the socket that systemd has opened; or tcp:ADDRESS:PORT, to serve
    /// the memory to other hosts
    #[arg(long, value_name = "WHERE", value_parser = listen, required_unless_present_any = ["replace", "standby_for"])]
    pub listen: Option<Listen>,
    /// Where another `pager serve` may take over: unix:PATH. Only this user may connect
    #[arg(long, value_name = "WHERE", value_parser = socket)]
    pub control: Option<PathBuf>,
    /// Take over from the one that is controlled at unix:PATH, with its VMs and its sockets, then
    /// serve. If that fails it goes on as before
    #[arg(long, value_name = "WHERE", value_parser = socket, conflicts_with_all = ["listen", "control", "standby_for"])]
    pub replace: Option<PathBuf>,
    /// Stand by for the one that is controlled at unix:PATH: take over if it is killed
    #[arg(long, value_name = "WHERE", value_parser = socket, conflicts_with_all = ["listen", "control"])]
    pub standby_for: Option<PathBuf>,
    /// Who may connect: permissions of the socket
    #[arg(long, value_name = "OCTAL", default_value = "600", value_parser = mode)]
    pub socket_mode: u32,
    /// VMs that are served at once; more are refused
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub max_vms: u32,
    /// Memory for caches and for pages on their way, of all VMs together; at least 8M for each
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size)]
    pub memory: u64,
    /// Fetch what is missing in the background, as fast as it goes or with so many bytes a second
    #[arg(
        long,
        value_name = "RATE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "max",
        value_parser = fill
    )]
    pub fill: Option<Fill>,
    /// Bytes a second of all that is fetched before it is touched: the working set, --fill and
    /// windows around faults, for each VM; by default as many as it goes. --fill=RATE bounds the
    /// first two as well
    #[arg(long, value_name = "RATE", value_parser = size)]
    pub budget: Option<u64>,
    /// Do not fetch the image's working set when a VM begins
    #[arg(long)]
    pub no_working_set: bool,
    /// Write down which pages VMs touch, in their order, for `pack --working-set`. Fetches nothing
    /// that is not touched meanwhile
    #[arg(long, value_name = "TEXTFILE", conflicts_with = "fill")]
    pub record_working_set: Option<PathBuf>,
    /// Ask for each page once, whatever VMs want it, and keep it in one copy for all of them: for an image that is
    /// far away. Takes memory as pages come, up to the size of the image, beside --memory. VMMs that ask for it map
    /// that copy, others get copies of their own
    #[arg(long, conflicts_with = "record_working_set")]
    pub share: bool,
    /// What becomes of a VM that cannot have a page: it gets SIGBUS when it touches it, or is killed
    #[arg(long, value_name = "WHAT", default_value = "sigbus")]
    pub on_loss: OnLoss,
    /// Seconds that a VMM may take to hand its memory over
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub handoff_timeout: u64,
    /// Seconds that reading a page may take, with all tries; then it is lost
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub read_timeout: u64,
    /// Seconds for which the other host of --image tcp: may be away, beside --read-timeout, and is tried again, before pages are lost: VMs pause where they touch what is missing
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=86_400))]
    pub recover: u64,
    /// Seconds between lines about a VM of which pages are missing; 0 for none
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub progress: u64,
    #[command(flatten)]
    pub tls: Tls,
    /// Print a JSON object a line
    #[arg(long)]
    pub json: bool,
    /// Print nothing but what goes wrong
    #[arg(long, short, conflicts_with = "json")]
    pub quiet: bool,
}

/// Where VMMs connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A socket of our own.
    Unix(PathBuf),
    /// The one that systemd hands over.
    Systemd,
    /// Not VMMs but other hosts, which want pages.
    Tcp(String),
}

/// How fast the rest is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// As fast as it goes.
    Max,
    /// Bytes a second.
    Rate(u64),
}

/// What becomes of a VM that cannot have a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnLoss {
    /// The thread that touches it gets a signal.
    Sigbus,
    /// The process is killed.
    Kill,
}

fn listen(text: &str) -> Result<Listen, String> {
    if let Some(address) = text.strip_prefix("tcp:") {
        return match address.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Listen::Tcp(address.to_owned()))
            }
            _ => Err("tcp:ADDRESS:PORT is needed, such as tcp:127.0.0.1:7000".to_owned()),
        };
    }
    match text.strip_prefix("unix:") {
        Some(path) if !path.is_empty() => Ok(Listen::Unix(path.into())),
        None if text == "systemd" => Ok(Listen::Systemd),
        _ => Err(
            "unix:PATH is needed, such as unix:/run/pager.sock, or systemd, or tcp:ADDRESS:PORT"
                .to_owned(),
        ),
    }
}

pub(super) fn socket(text: &str) -> Result<PathBuf, String> {
    match text.strip_prefix("unix:") {
        Some(path) if !path.is_empty() => Ok(path.into()),
        _ => Err("unix:PATH is needed, such as unix:/run/pager.control".to_owned()),
    }
}

fn mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| mode & !0o777 == 0)
        .ok_or_else(|| "permissions are needed, such as 600 or 660".to_owned())
}

fn size(text: &str) -> Result<u64, String> {
    super::pager::bytes(text)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "a number of bytes is needed, such as 512M or 2G".to_owned())
}

fn fill(text: &str) -> Result<Fill, String> {
    match text {
        "max" => Ok(Fill::Max),
        _ => size(text).map(Fill::Rate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_read() {
        assert_eq!(listen("unix:/run/a b"), Ok(Listen::Unix("/run/a b".into())));
        assert_eq!(listen("systemd"), Ok(Listen::Systemd));
        assert_eq!(listen("tcp:[::1]:7"), Ok(Listen::Tcp("[::1]:7".into())));
        for wrong in [
            "",
            "unix:",
            "/run/pager.sock",
            "tcp:",
            "tcp::1",
            "tcp:a:",
            "tcp:a:99999",
        ] {
            assert!(listen(wrong).is_err(), "{wrong}");
        }
        assert_eq!(socket("unix:/run/c"), Ok("/run/c".into()));
        for wrong in ["", "unix:", "/run/c", "systemd", "tcp:a:7"] {
            assert!(socket(wrong).is_err(), "{wrong}");
        }
        assert_eq!((mode("600"), mode("0660")), (Ok(0o600), Ok(0o660)));
        for wrong in ["", "9", "1777", "-1"] {
            assert!(mode(wrong).is_err(), "{wrong}");
        }
        assert_eq!((size("7"), size("2g")), (Ok(7), Ok(2 << 30)));
        for wrong in ["", "G", "0", "1é", "-1M", "99999999999T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(fill("max"), Ok(Fill::Max));
        assert_eq!(fill("200M"), Ok(Fill::Rate(200 << 20)));
    }
}
