//! Loop devices and mounts that are gone with their values, also when the benchmark fails.

use std::path::{Path, PathBuf};
use std::process::Command;

use bench::Error;
use bench::process::output;

/// Loop devices over files of a directory.
pub struct Loops(Vec<String>);

impl Loops {
    pub fn new(dir: &Path, count: usize, bytes: u64) -> Result<Loops, Error> {
        // What was made before a failure is undone by the drop.
        let mut loops = Loops(Vec::new());
        for index in 0..count {
            let file = dir.join(format!("device-{index}"));
            std::fs::File::create(&file)?.set_len(bytes)?;
            let mut make = Command::new("losetup");
            let name = output(make.args(["--find", "--show", "--direct-io=on"]).arg(&file))?;
            loops.0.push(name.trim().to_owned());
        }
        Ok(loops)
    }

    pub fn paths(&self) -> &[String] {
        &self.0
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for device in &self.0 {
            if let Err(error) = output(Command::new("losetup").args(["--detach", device])) {
                eprintln!("{device} is left over: {error}");
            }
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
