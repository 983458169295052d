//! The daemon's log: lines go into a bounded queue, and a separate thread writes them to stderr.
//!
//! Guarantees:
//! 1. Logging never waits. If the reader of stderr stalls, lines are dropped and counted, and
//!    requests are not delayed.
//! 2. Logging never fails. If stderr cannot be written (a full disk, a pipe without a reader),
//!    lines are dropped and counted, and the daemon continues.
//! 3. Memory is bounded: [`LINES_MAX`] lines of [`LINE_BYTES_MAX`] bytes.
//! 4. After lines were dropped, the next line that can be written reports their number.
//!
//! Tests: this file's, and `tests/path/cases/a_log_that_cannot_be_written_stops_nothing.sh`.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use tracing_subscriber::fmt::MakeWriter;

/// The maximum of waiting lines: more than an ordinary start writes, so that a short stall during
/// it loses nothing.
const LINES_MAX: usize = 1024;

/// Longer lines are cut after this many bytes.
const LINE_BYTES_MAX: usize = 8 << 10;

/// How long [`LogWriter::flush`] waits for a stalled reader.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);

/// The log of this process, if it has one.
static PROCESS: OnceLock<LogWriter> = OnceLock::new();

/// The number of lines of the process' log that were dropped since it started, because the queue
/// was full or stderr refused them.
pub fn dropped_lines() -> u64 {
    PROCESS.get().map_or(0, LogWriter::dropped)
}

/// Writes the waiting lines of the process' log, before another program replaces it.
pub(crate) fn flush_log() {
    if let Some(log) = PROCESS.get() {
        log.flush();
    }
}

enum Entry {
    Line(Vec<u8>),
    /// Write all earlier entries, then notify this sender.
    Flush(SyncSender<()>),
}

/// Receives the lines of a log. A handle, for any thread.
#[derive(Debug, Clone)]
pub struct LogWriter {
    queue: SyncSender<Entry>,
    dropped: Arc<AtomicU64>,
}

impl LogWriter {
    /// The log of this process, on stderr.
    pub fn stderr() -> LogWriter {
        PROCESS.get_or_init(|| LogWriter::to(io::stderr())).clone()
    }

    /// A log that is written to `out`. If its thread cannot be started, all lines are dropped.
    fn to(out: impl Write + Send + 'static) -> LogWriter {
        let (queue, lines) = sync_channel(LINES_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let count = dropped.clone();
        let _ = thread::Builder::new().name("log".to_owned()).spawn(move || write_lines(&lines, out, &count));
        LogWriter { queue, dropped }
    }

    /// The number of lines that were dropped so far.
    fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until all earlier lines are written, for at most a second: the reader may have
    /// stalled.
    pub fn flush(&self) {
        let (sender, done) = sync_channel(1);
        let mut entry = Entry::Flush(sender);
        let end = Instant::now() + FLUSH_WITHIN;
        while let Err(TrySendError::Full(back)) = self.queue.try_send(entry) {
            if Instant::now() >= end {
                return;
            }
            entry = back;
            thread::sleep(Duration::from_millis(1));
        }
        // Without an answer nothing more can be done.
        let _: Result<(), RecvTimeoutError> = done.recv_timeout(end.saturating_duration_since(Instant::now()));
    }
}

impl Write for LogWriter {
    /// Accepts one complete line. Never waits and never fails.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut kept = line[..line.len().min(LINE_BYTES_MAX)].to_vec();
        if kept.len() < line.len() {
            kept.extend_from_slice(b"...\n");
        }
        if self.queue.try_send(Entry::Line(kept)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LogWriter;

    fn make_writer(&'a self) -> LogWriter {
        self.clone()
    }
}

/// Writes lines as they arrive, until all senders are gone.
fn write_lines(lines: &Receiver<Entry>, mut out: impl Write, dropped: &AtomicU64) {
    let mut reported = 0;
    for entry in lines {
        let line = match entry {
            Entry::Line(line) => line,
            Entry::Flush(done) => {
                let _ = out.flush();
                // The caller of `flush` may have stopped waiting.
                let _ = done.try_send(());
                continue;
            }
        };
        let lost = dropped.load(Ordering::Relaxed);
        if lost > reported
            && writeln!(out, "{} log lines were dropped: they could not be written", lost - reported).is_ok()
        {
            reported = lost;
        }
        if out.write_all(&line).is_err() {
            dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// An output that a test can make stall or fail.
    #[derive(Clone, Default)]
    struct Out(Arc<Mutex<State>>);

    #[derive(Default)]
    struct State {
        written: String,
        fails: bool,
    }

    impl Out {
        fn state(&self) -> std::sync::MutexGuard<'_, State> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl Write for Out {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut state = self.state();
            if state.fails {
                return Err(io::Error::from(io::ErrorKind::StorageFull));
            }
            state.written.push_str(&String::from_utf8_lossy(bytes));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn say(log: &LogWriter, line: &str) {
        let mut log = log.clone();
        assert_eq!(log.write(line.as_bytes()).unwrap(), line.len());
    }

    #[test]
    fn lines_are_written_in_order() {
        let out = Out::default();
        let log = LogWriter::to(out.clone());
        say(&log, "one\n");
        say(&log, "two\n");
        log.flush();
        assert_eq!(out.state().written, "one\ntwo\n");
        assert_eq!(log.dropped(), 0);
    }

    #[test]
    fn a_reader_that_stalls_costs_lines_that_are_counted_and_no_time() {
        let out = Out::default();
        let log = LogWriter::to(out.clone());
        let stalled = out.state();
        for _ in 0..3 * LINES_MAX {
            say(&log, "line\n");
        }
        let dropped = log.dropped();
        assert!((2 * LINES_MAX as u64 - 2..=2 * LINES_MAX as u64).contains(&dropped), "{dropped}");
        drop(stalled);
        log.flush();
        say(&log, "after\n");
        log.flush();
        let written = out.state().written.clone();
        // The thread may have written its first line, and a first count, before it stalled.
        let counts =
            written.lines().filter_map(|line| line.strip_suffix(" log lines were dropped: they could not be written"));
        let reported: u64 = counts.map(|count| count.parse::<u64>().unwrap()).sum();
        assert_eq!(reported, dropped);
        assert!(written.ends_with("after\n"));
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_said_when_it_can() {
        let out = Out::default();
        let log = LogWriter::to(out.clone());
        out.state().fails = true;
        say(&log, "lost\n");
        say(&log, "lost\n");
        log.flush();
        assert_eq!(log.dropped(), 2);
        out.state().fails = false;
        say(&log, "again\n");
        log.flush();
        assert_eq!(out.state().written, "2 log lines were dropped: they could not be written\nagain\n");
    }

    #[test]
    fn a_flush_does_not_wait_for_a_reader_that_has_stalled() {
        let out = Out::default();
        let log = LogWriter::to(out.clone());
        let stalled = out.state();
        say(&log, "line\n");
        let began = Instant::now();
        log.flush();
        assert!(began.elapsed() >= FLUSH_WITHIN);
        drop(stalled);
    }

    #[test]
    fn a_line_is_cut_behind_its_limit() {
        let out = Out::default();
        let log = LogWriter::to(out.clone());
        say(&log, &"x".repeat(2 * LINE_BYTES_MAX));
        log.flush();
        assert_eq!(out.state().written.len(), LINE_BYTES_MAX + 4);
    }
}
