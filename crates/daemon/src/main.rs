//! `purlind`: the storage daemon, in the foreground.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use daemon::Engine;
use daemon::http::{HttpOptions, Server};
use runtime::{Config, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Purlin's storage daemon: pools drives under parity RAID and serves volumes. Runs in the foreground.
#[derive(Debug, Parser)]
#[command(
    name = "purlind",
    version,
    after_help = "Examples:\n  purlind --state /var/lib/purlin\n  purlind --state /tmp/p --socket /tmp/p.sock --cores 0,2-3\n\nEnvironment:\n  PURLIN_LOG  what to log, such as info, debug, or warn,array=debug [default: info]"
)]
struct Line {
    /// Directory that remembers where the drives of groups are; made if it is not there
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// Cores to run on, one shard each, such as 0,2-3 [default: all that the process may use]
    #[arg(long, value_name = "LIST", value_parser = parse_cores)]
    cores: Option<Cores>,
    /// Memory for buffers, pinned
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = api::parse_bytes)]
    buffers: u64,
    #[command(flatten)]
    http: HttpOptions,
}

/// A list of cores, each once.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cores(Vec<usize>);

fn parse_cores(text: &str) -> Result<Cores, String> {
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| format!("{text:?} is not a core's number"));
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last || last > 4095 {
            return Err(format!("{part:?} is not a range of cores"));
        }
        cores.extend(first..=last);
    }
    cores.sort_unstable();
    cores.dedup();
    Ok(Cores(cores))
}

fn main() -> ExitCode {
    let line = Line::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("PURLIN_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(terminal).init();
    match run(line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("purlind: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(line: Line) -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config { arena_bytes: line.buffers as usize, ..Config::default() };
    if let Some(Cores(cores)) = line.cores {
        config.cores = cores;
    }
    let runtime = Runtime::start(config)?;
    let control = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    control.block_on(serve(&runtime, &line.state, &line.http))?;
    runtime.stop();
    Ok(())
}

async fn serve(
    runtime: &Runtime,
    state: &std::path::Path,
    http: &HttpOptions,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let engine = Engine::new(runtime, state)
        .await
        .map_err(|error| format!("the state directory {}: {error}", state.display()))?;
    let server = Server::bind(http).await?;
    engine.start_remembered().await?;
    engine.start_sampling();
    let (stop, stopping) = watch::channel(false);
    let serving = tokio::spawn(server.run(Arc::clone(&engine) as Arc<dyn daemon::http::Control>, stopping));
    tracing::info!(
        socket = %http.socket.display(),
        shards = runtime.shards().len(),
        parity = gf::kernel_name(),
        version = env!("CARGO_PKG_VERSION"),
        "ready"
    );
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping");
    // Nobody listens to a stop that is not heard: then the server has ended by itself.
    let _ = stop.send(true);
    serving.await?;
    engine.stop().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_numbers_and_ranges() {
        assert_eq!(parse_cores("0,2-3,2").unwrap(), Cores(vec![0, 2, 3]));
        assert_eq!(parse_cores("3-1").unwrap_err(), "\"3-1\" is not a range of cores");
        assert_eq!(parse_cores("a").unwrap_err(), "\"a\" is not a core's number");
    }

    #[test]
    fn the_line_of_the_documents_is_understood() {
        let line = Line::try_parse_from(["purlind", "--state", "/s", "--socket", "/x", "--cores", "0"]).unwrap();
        assert_eq!((line.state, line.cores), (PathBuf::from("/s"), Some(Cores(vec![0]))));
    }
}
