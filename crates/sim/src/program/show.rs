//! Programs as text, a line for each step.

use std::fmt;

use super::{Ask, CrashKind, Mishap, Program, Remote, Setup, Step};
use crate::engine::history::Request;
use crate::{Broken, Way};

/// A number of bytes, in KiB where that is whole.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 > 0 && self.0.is_multiple_of(1024) {
            write!(formatter, "{}K", self.0 / 1024)
        } else {
            write!(formatter, "{}", self.0)
        }
    }
}

impl fmt::Display for Ask {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ask { request, start, len, shard, pause_us } = *self;
        let name = match request {
            Request::Write { fua: true } => "write-fua",
            Request::Write { fua: false } => "write",
            Request::Discard => "discard",
            Request::WriteZeroes { fua: true, .. } => "zeroes-fua",
            Request::WriteZeroes { keep: true, .. } => "zeroes-keep",
            Request::WriteZeroes { .. } => "zeroes",
            Request::FastZeroes { fua: true } => "fast-zeroes-fua",
            Request::FastZeroes { fua: false } => "fast-zeroes",
            Request::Flush => "flush",
            Request::Read => "read",
        };
        formatter.write_str(name)?;
        if request != Request::Flush {
            write!(formatter, " {}+{}", Bytes(start), Bytes(len))?;
        }
        if shard > 0 {
            write!(formatter, " on shard {shard}")?;
        }
        if pause_us > 0 {
            write!(formatter, " after {pause_us} us")?;
        }
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Work(asks) => show_work(formatter, asks),
            Step::Crash { kind, after, lost, again } => show_crash(formatter, *kind, *after, lost, again),
            Step::Die { member, after: 0 } => write!(formatter, "member {member} dies"),
            Step::Die { member, after } => write!(formatter, "member {member} dies after {after} more operations"),
            Step::Hang { member, after: 0 } => write!(formatter, "member {member} never answers again"),
            Step::Hang { member, after } => {
                write!(formatter, "member {member} never answers again after {after} more operations")
            }
            Step::Errors { member, kind, full } => {
                let error = if *full { "no space" } else { "errno 5" };
                write!(formatter, "member {member}: the next two {kind:?} operations fail with {error}")
            }
            Step::Hiccup { member, kind } => write!(formatter, "member {member}: the next {kind:?} fails once"),
            Step::Media { member, start, len } => {
                write!(formatter, "member {member}: media error at {}+{} of its data", Bytes(*start), Bytes(*len))
            }
            Step::Silent { member, fault, start, len } => {
                let (start, len) = (Bytes(*start), Bytes(*len));
                write!(formatter, "member {member}: {fault:?} in a write of {start}+{len}, then scrub")
            }
            Step::Outage { members, how, at_start, after, us } => {
                let start = if *at_start { "at the next start: " } else { "" };
                write!(formatter, "{start}after {after} more operations what members {members:?} are asked ")?;
                write!(formatter, "{}, for {us} us", broken(*how))
            }
            Step::Slow { member, factor } => write!(formatter, "member {member} is {factor} times slower"),
            Step::Mishap { member, what, after_us, ms } => {
                write!(formatter, "member {member}, after {after_us} us: {}", mishap(*what, *ms))
            }
            Step::Replace { member, spare } => {
                write!(formatter, "a {} takes the place of member {member}", if *spare { "spare" } else { "new drive" })
            }
            Step::Exchange { member } => write!(formatter, "member {member} is copied to a new drive"),
            Step::Return { member } => write!(formatter, "the old drive of member {member} is back"),
            Step::Restart { without, shards } => {
                write!(formatter, "stop and assemble on {shards} shards")?;
                if without.is_empty() { Ok(()) } else { write!(formatter, " without members {without:?}") }
            }
            Step::Own { first, count, run, after_us } => {
                write!(
                    formatter,
                    "after {after_us} us, {count} shards from {first} on own the stripe groups, in runs of {run}"
                )
            }
            Step::Scrub => formatter.write_str("scrub and repair"),
            Step::Settle => formatter.write_str("wait for all jobs"),
            Step::Verify => formatter.write_str("read everything"),
        }
    }
}

fn show_work(formatter: &mut fmt::Formatter<'_>, asks: &[Ask]) -> fmt::Result {
    for (index, ask) in asks.iter().enumerate() {
        write!(formatter, "{}{ask}", if index == 0 { "" } else { "\n   together with " })?;
    }
    Ok(())
}

fn show_crash(
    formatter: &mut fmt::Formatter<'_>,
    kind: CrashKind,
    after: u64,
    lost: &[usize],
    again: &[u64],
) -> fmt::Result {
    let what = match kind {
        CrashKind::PowerCut => "power cut",
        CrashKind::Kill => "kill",
    };
    write!(formatter, "{what} after {after} more drive operations")?;
    if !lost.is_empty() {
        write!(formatter, ", losing members {lost:?}")?;
    }
    if !again.is_empty() {
        write!(formatter, ", and during recovery after {again:?}")?;
    }
    Ok(())
}

/// How operations end in an outage.
fn broken(how: Broken) -> &'static str {
    match how {
        Broken::Silent => "is not answered",
        Broken::Errors => "fails",
        Broken::Pulled => "fails, as if they were pulled",
        Broken::Power => "fails, as if they had no power",
    }
}

/// The effect of a mishap that lasts up to `ms`.
fn mishap(what: Mishap, ms: u64) -> String {
    match what {
        Mishap::Reset => "its connections are reset".to_owned(),
        Mishap::TimeOut => "its connections time out".to_owned(),
        Mishap::Stall(Way::ToTarget) => format!("its connections carry nothing there for up to {ms} ms"),
        Mishap::Stall(Way::ToHost) => format!("its connections carry nothing back for up to {ms} ms"),
        Mishap::Split { to_target: true, to_host: true } => format!("cut off for {ms} ms"),
        Mishap::Split { to_target: true, .. } => format!("cut off one way, there, for {ms} ms"),
        Mishap::Split { .. } => format!("cut off one way, back, for {ms} ms"),
        Mishap::TargetPower => format!("its target has no power for {ms} ms"),
        Mishap::TargetKill => format!("its target's process is killed, and started after {ms} ms"),
    }
}

impl fmt::Display for Program {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setup { shape, protection, sector_bytes, drive_bytes, shards, pace, buggify, in_pieces, remote } =
            self.setup;
        writeln!(
            formatter,
            "seed {}: {shape}, {} members, {protection}, drives of {} with sectors of {sector_bytes}, {shards} shards, \
             pace {pace:?}{}{}",
            self.seed,
            shape.members,
            Bytes(drive_bytes),
            if buggify { ", looking for trouble" } else { "" },
            if in_pieces { ", asked as a volume in pieces" } else { "" }
        )?;
        if remote != Remote::default() {
            let members: Vec<usize> = (0..usize::from(shape.members)).filter(|&member| remote.has(member)).collect();
            writeln!(formatter, "members {members:?} on targets of {} addresses", remote.addresses)?;
        }
        for (index, step) in self.steps.iter().enumerate() {
            writeln!(formatter, "{:>3} {step}", index + 1)?;
        }
        Ok(())
    }
}
