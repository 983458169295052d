//! Loop devices and mounts that are removed when this program ends, in any way.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bench::Error;
use bench::process::output;

/// A shell script that waits for the end of its standard input. That comes when this program ends,
/// even by a signal that cannot be caught. Then it removes the directory `$1`, with the mounts in
/// it and the loop devices on its files.
const CARETAKER: &str = r#"
trap '' INT TERM HUP
while read -r _; do :; done
# What this program started ends with it, but maybe not yet.
for _ in $(seq 100); do
    mountpoint --quiet "$1/btrfs" || break
    umount "$1/btrfs" 2>/dev/null || sleep 0.1
done
for file in "$1"/device-*; do
    losetup --noheadings --output NAME --associated "$file" | while read -r device; do losetup --detach "$device"; done
done
rm -rf "$1"
"#;

/// Loop devices over files of a directory. Both are removed when this value is dropped.
pub struct Loops {
    paths: Vec<String>,
    caretaker: Child,
}

impl Loops {
    /// Makes the devices. The directory must have no other use.
    pub fn new(dir: &Path, count: usize, bytes: u64) -> Result<Loops, Error> {
        let mut shell = Command::new("sh");
        shell.args(["-c", CARETAKER, "caretaker"]).arg(dir).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut loops = Loops { paths: Vec::new(), caretaker: shell.spawn()? };
        for index in 0..count {
            let file = dir.join(format!("device-{index}"));
            std::fs::File::create(&file)?.set_len(bytes)?;
            let mut make = Command::new("losetup");
            let name = output(make.args(["--find", "--show", "--direct-io=on"]).arg(&file))?;
            loops.paths.push(name.trim().to_owned());
        }
        Ok(loops)
    }

    pub fn paths(&self) -> &[String] {
        &self.paths
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        drop(self.caretaker.stdin.take());
        if let Err(error) = self.caretaker.wait() {
            eprintln!("loop devices may be left over: {error}");
        }
    }
}

/// A mounted file system.
pub struct Mount(PathBuf);

impl Mount {
    /// Mounts the btrfs of these devices.
    pub fn btrfs(devices: &[String], at: &Path) -> Result<Mount, Error> {
        std::fs::create_dir_all(at)?;
        let names: Vec<String> = devices.iter().map(|device| format!("device={device}")).collect();
        let mut mount = Command::new("mount");
        output(mount.args(["-t", "btrfs", "-o", &names.join(","), &devices[0]]).arg(at))?;
        Ok(Mount(at.to_owned()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = output(Command::new("umount").arg(&self.0)) {
            eprintln!("{} is still mounted: {error}", self.0.display());
        }
    }
}
