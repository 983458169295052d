//! Stored inputs: `corpus/TARGET/NAME`, and inputs that once caused a crash in
//! `corpus/TARGET/crashes/NAME`.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::target::{Seed, Target};

/// The folder of this crate, where it runs: it may have been built in another checkout that has the
/// same build cache.
pub fn home() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from)
}

/// The folder of a target.
pub fn folder(target: &Target) -> PathBuf {
    home().join("corpus").join(target.name)
}

/// The folder of the inputs that caused a crash of a target.
pub fn crashes(target: &Target) -> PathBuf {
    folder(target).join("crashes")
}

/// All inputs of a target: those that its generator makes now, those stored elsewhere, those in its
/// folder, and those that caused a crash. Each input is contained once.
///
/// # Errors
/// If an existing file cannot be read.
pub fn load(target: &Target) -> io::Result<Vec<Seed>> {
    let mut seeds = (target.seeds)();
    seeds.extend((target.stored)());
    for folder in [folder(target), crashes(target)] {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        let mut paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        paths.retain(|path| path.is_file());
        paths.sort();
        for path in paths {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let bytes = fs::read(&path)?;
            if seeds.iter().all(|seed| seed.bytes != bytes) {
                seeds.push(Seed { name, bytes });
            }
        }
    }
    Ok(seeds)
}

/// Writes the inputs from the generator of a target into its folder. Other files there stay.
///
/// # Errors
/// If a file cannot be written.
pub fn generate(target: &Target) -> io::Result<usize> {
    let folder = folder(target);
    fs::create_dir_all(&folder)?;
    let seeds = (target.seeds)();
    for seed in &seeds {
        fs::write(folder.join(&seed.name), &seed.bytes)?;
    }
    Ok(seeds.len())
}

/// Stores an input that caused a crash of a target, under a name that is derived from its bytes,
/// unless it is stored already. Returns the path.
///
/// # Errors
/// If the file cannot be written.
pub fn keep_crash(target: &Target, input: &[u8]) -> io::Result<PathBuf> {
    let folder = crashes(target);
    fs::create_dir_all(&folder)?;
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        if fs::read(&path)? == input {
            return Ok(path);
        }
    }
    let path = folder.join(format!("{:08x}-{}", gf::crc32c(input), input.len()));
    fs::write(&path, input)?;
    Ok(path)
}
