//! Running `purlin nvme connect` processes of this machine, for `purlin nvme list` and
//! `disconnect`.
//!
//! Each such process listens at a port of the loopback interface. It writes the port and a secret
//! for requests to a file of its user. A file whose process does not answer is left over, and the
//! next command that finds it removes it.

use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use api::format_bytes;
use comfy_table::Cell;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::device;
use super::reports::{NvmeConnection, NvmeConnectionList};
use super::serve::Served;
use crate::common_args::Common;
use crate::fit::{Column, table};
use crate::nvme_args::DisconnectArgs;
use crate::output::{has_colour, show};
use crate::{Client, Failure};

/// Time for a process to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Maximum number of bytes of a request.
const QUESTION_BYTES_MAX: u64 = 256;

/// The content of a process's file.
#[derive(Debug, Serialize, Deserialize)]
struct Whereabouts {
    address: SocketAddr,
    secret: String,
}

/// Answers to requests.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Status(Box<NvmeConnection>),
    Ending,
    /// This many clients are connected.
    Busy(u64),
}

/// The file of this process. Dropping it removes the file.
pub(super) struct Control {
    file: PathBuf,
}

impl Drop for Control {
    fn drop(&mut self) {
        // Another process may have removed it before.
        let _ = fs::remove_file(&self.file);
    }
}

/// The folder of this user's files.
fn folder() -> Result<PathBuf, Failure> {
    let of = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = match cfg!(windows) {
        true => of("LOCALAPPDATA"),
        false => of("XDG_RUNTIME_DIR").or_else(|| Some(of("HOME")?.join(".cache"))),
    };
    let base = base.ok_or_else(|| {
        let what = "there is no folder to note connections in: set XDG_RUNTIME_DIR or HOME";
        Failure::Usage(what.to_owned())
    })?;
    Ok(base.join("purlin").join("nvme"))
}

/// Lets other processes of this user query and end this one.
pub(super) async fn announce(served: Rc<Served>) -> Result<Control, Failure> {
    let folder = folder()?;
    let fail = |source| Failure::Local { what: format!("cannot note the connection in {}", folder.display()), source };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(fail)?;
    let mut secret = [0; 16];
    getrandom::fill(&mut secret).map_err(|error| fail(io::Error::other(error.to_string())))?;
    let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let whereabouts = Whereabouts { address: listener.local_addr().map_err(fail)?, secret: secret.clone() };
    let json = serde_json::to_string(&whereabouts).expect("addresses and text");
    fs::create_dir_all(&folder).map_err(fail)?;
    let file = folder.join(format!("{}.json", std::process::id()));
    write_private(&file, &json).map_err(fail)?;
    tokio::task::spawn_local(async move {
        loop {
            if let Ok((stream, _)) = listener.accept().await {
                let (served, secret) = (served.clone(), secret.clone());
                tokio::task::spawn_local(async move {
                    let answered = answer(stream, &served, &secret);
                    // A peer that sends no request, or reads no answer, gets none: the error is
                    // ignored.
                    let _ = tokio::time::timeout(ANSWER_MAX, answered).await;
                });
            }
        }
    });
    Ok(Control { file })
}

/// Writes a file that only this user can read. It replaces one left over from a process with the
/// same number. The file appears complete or not at all.
fn write_private(file: &Path, text: &str) -> io::Result<()> {
    let new = file.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(&new)?.write_all(text.as_bytes())?;
    fs::rename(&new, file)
}

async fn answer(stream: TcpStream, served: &Served, secret: &str) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut question = String::new();
    BufReader::new(reader.take(QUESTION_BYTES_MAX)).read_line(&mut question).await?;
    let Some(wish) = question.trim_end().strip_prefix(secret) else { return Ok(()) };
    let answer = match wish {
        " status" => Answer::Status(Box::new(served.report().await)),
        " disconnect" if served.clients() > 0 => Answer::Busy(served.clients()),
        " disconnect" | " disconnect --force" => Answer::Ending,
        _ => return Ok(()),
    };
    let mut line = serde_json::to_string(&answer).expect("text and numbers");
    line.push('\n');
    writer.write_all(line.as_bytes()).await?;
    if matches!(answer, Answer::Ending) {
        served.end.notify_one();
        // The connection stays open until the process has ended, which tells the peer.
        std::future::pending::<()>().await;
    }
    Ok(())
}

/// Why there is no answer.
enum Silence {
    /// No process listens there, or another program does.
    Nobody,
    /// The answer takes too long.
    Late,
}

/// A process that can be queried.
struct Process {
    file: PathBuf,
    whereabouts: Whereabouts,
}

impl Process {
    /// All processes with a file.
    fn all() -> Result<Vec<Process>, Failure> {
        let folder = folder()?;
        let fail = |source| Failure::Local { what: format!("cannot read {}", folder.display()), source };
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(fail(error)),
        };
        let mut processes = Vec::new();
        for entry in entries {
            let file = entry.map_err(fail)?.path();
            if file.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            // The file may be removed meanwhile.
            let Ok(text) = fs::read_to_string(&file) else { continue };
            match serde_json::from_str(&text) {
                Ok(whereabouts) => processes.push(Process { file, whereabouts }),
                Err(_) => drop(fs::remove_file(&file)),
            }
        }
        Ok(processes)
    }

    /// Sends a request. The answer `Ending` is returned once the process has ended, or after a
    /// timeout.
    async fn ask(&self, wish: &str) -> Result<Answer, Silence> {
        let asked = async {
            let mut stream = TcpStream::connect(self.whereabouts.address).await?;
            stream.write_all(format!("{} {wish}\n", self.whereabouts.secret).as_bytes()).await?;
            let mut reader = BufReader::new(stream);
            let mut line = String::new();
            reader.read_line(&mut line).await?;
            Ok::<_, io::Error>((serde_json::from_str(&line)?, reader))
        };
        let asked = tokio::time::timeout(ANSWER_MAX, asked).await.map_err(|_| Silence::Late)?;
        let (answer, mut reader) = asked.map_err(|_| Silence::Nobody)?;
        if matches!(answer, Answer::Ending) {
            let mut rest = Vec::new();
            let _ = tokio::time::timeout(ANSWER_MAX * 2, reader.read_to_end(&mut rest)).await;
        }
        Ok(answer)
    }

    /// The namespace that it exports. A left-over file is removed.
    async fn status(&self) -> Option<NvmeConnection> {
        match self.ask("status").await {
            Ok(Answer::Status(connection)) => Some(*connection),
            Err(Silence::Late) => None,
            Ok(Answer::Ending | Answer::Busy(_)) | Err(Silence::Nobody) => {
                let _ = fs::remove_file(&self.file);
                None
            }
        }
    }
}

/// All processes that answer, the oldest first.
async fn connections() -> Result<Vec<(Process, NvmeConnection)>, Failure> {
    let mut found = Vec::new();
    for process in Process::all()? {
        if let Some(connection) = process.status().await {
            found.push((process, connection));
        }
    }
    found.sort_by_key(|(_, connection)| (connection.started_unix_s, connection.pid));
    Ok(found)
}

pub(super) async fn list(common: &Common, client: &Client) -> Result<(), Failure> {
    let connections = connections().await?.into_iter().map(|(_, connection)| connection).collect();
    let devices = device::devices(client).await?;
    show(common, &NvmeConnectionList { connections, devices }, |list| text(has_colour(), list))
}

fn text(colour: bool, list: &NvmeConnectionList) -> String {
    if list.connections.is_empty() && list.devices.is_empty() {
        return "no namespaces are connected; connect one with: purlin nvme connect ADDRESS NQN\n".to_owned();
    }
    let columns = [
        Column::Number("NSID"),
        Column::Number("SIZE"),
        Column::Word("PATHS"),
        Column::Number("CLIENTS"),
        Column::Number("PID"),
        Column::Word("NBD"),
        Column::Word("NQN"),
    ];
    let row = |connection: &NvmeConnection| {
        let paths: Vec<String> =
            connection.paths.iter().map(|path| format!("{} {}", path.address, path.state)).collect();
        vec![
            Cell::new(connection.nsid),
            Cell::new(format_bytes(connection.size_bytes)),
            Cell::new(paths.join(", ")),
            Cell::new(connection.client_count),
            Cell::new(connection.pid),
            Cell::new(&connection.nbd_uri),
            Cell::new(&connection.subsystem),
        ]
    };
    let mut text = String::new();
    if !list.connections.is_empty() {
        text.push_str(&table(colour, &columns, list.connections.iter().map(row).collect()));
    }
    for connection in &list.connections {
        let broken = connection.paths.iter().filter(|path| matches!(path.state.as_str(), "connecting" | "lost"));
        for path in broken {
            let why = path.last_error.as_deref().unwrap_or("not connected yet");
            text.push_str(&format!("{}, namespace {}: {why}\n", path.address, connection.nsid));
        }
    }
    if !list.devices.is_empty() {
        text.push_str(&device::text(colour, &list.devices));
    }
    text
}

pub(super) async fn disconnect(common: &Common, client: &Client, args: &DisconnectArgs) -> Result<(), Failure> {
    let is_meant = |connection: &NvmeConnection| {
        let subsystem = args.subsystem.as_ref().is_none_or(|nqn| nqn.as_str() == connection.subsystem);
        subsystem && args.nsid.is_none_or(|nsid| nsid == connection.nsid)
    };
    let mut ended = NvmeConnectionList { connections: Vec::new(), devices: Vec::new() };
    for (process, connection) in connections().await? {
        if !is_meant(&connection) {
            continue;
        }
        let wish = if args.force { "disconnect --force" } else { "disconnect" };
        match process.ask(wish).await {
            Ok(Answer::Busy(count)) => {
                let what = format!(
                    "{count} NBD {} connected to {}: say --force to disconnect it nevertheless",
                    if count == 1 { "client is" } else { "clients are" },
                    connection.nbd_uri
                );
                return Err(Failure::Ended(what));
            }
            Err(Silence::Late) => {
                return Err(Failure::Ended(format!("process {} does not answer", connection.pid)));
            }
            // The process may have ended meanwhile.
            _ => ended.connections.push(connection),
        }
    }
    ended.devices = device::disconnect(client, args).await?;
    if ended.connections.is_empty() && ended.devices.is_empty() && !args.all {
        return Err(Failure::Ended(
            "no such namespace is connected; `purlin nvme list` shows those that are".to_owned(),
        ));
    }
    show(common, &ended, |ended| {
        let line = |connection: &NvmeConnection| {
            format!("disconnected namespace {} of {}\n", connection.nsid, connection.subsystem)
        };
        ended.connections.iter().map(line).chain(ended.devices.iter().map(device::ended)).collect()
    })
}
