//! The peer: Intel's ISA-L, loaded from a shared library.
//!
//! The interfaces are documented in ISA-L's headers `raid.h`, `erasure_code.h` and `crc.h`.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int, c_uchar, c_uint, c_void};

use libloading::Library;

type PqGen = unsafe extern "C" fn(vects: c_int, len: c_int, array: *mut *mut c_void) -> c_int;
type EcInitTables = unsafe extern "C" fn(k: c_int, rows: c_int, a: *const c_uchar, gftbls: *mut c_uchar);
type EcEncodeData = unsafe extern "C" fn(
    len: c_int,
    k: c_int,
    rows: c_int,
    gftbls: *const c_uchar,
    data: *const *const c_uchar,
    coding: *const *mut c_uchar,
);
type Crc32Iscsi = unsafe extern "C" fn(buffer: *mut c_uchar, len: c_int, init_crc: c_uint) -> c_uint;
type GetVersionStr = unsafe extern "C" fn() -> *const c_char;

/// The alignment that `pq_gen` requires of every strip and of its length.
pub const ALIGNMENT: usize = 32;

/// A loaded ISA-L.
pub struct Isal {
    pq_gen: PqGen,
    ec_init_tables: EcInitTables,
    ec_encode_data: EcEncodeData,
    crc32_iscsi: Crc32Iscsi,
    version: String,
    /// Keeps the functions above in memory.
    _library: Library,
}

impl Isal {
    /// Loads the library that `PURLIN_ISAL` names, otherwise the system's `libisal.so.2`.
    pub fn load() -> Result<Isal, String> {
        let path = std::env::var_os("PURLIN_ISAL").unwrap_or_else(|| OsString::from("libisal.so.2"));
        Isal::load_from(&path).map_err(|error| format!("{}: {error}", path.to_string_lossy()))
    }

    fn load_from(path: &OsStr) -> Result<Isal, libloading::Error> {
        // SAFETY: ISA-L's initializers only query the CPU; the signatures are those of its headers.
        unsafe {
            let library = Library::new(path)?;
            // Only versions from 2.31 on report their version.
            let version = match library.get::<GetVersionStr>(b"isal_get_version_str\0") {
                Ok(version) => CStr::from_ptr(version()).to_string_lossy().into_owned(),
                Err(_) => {
                    format!("older than 2.31{}", loaded_file().map_or_else(String::new, |file| format!(" ({file})")))
                }
            };
            Ok(Isal {
                pq_gen: *library.get(b"pq_gen\0")?,
                ec_init_tables: *library.get(b"ec_init_tables\0")?,
                ec_encode_data: *library.get(b"ec_encode_data\0")?,
                crc32_iscsi: *library.get(b"crc32_iscsi\0")?,
                version,
                _library: library,
            })
        }
    }

    /// The version that the library reports.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Computes P and Q of `data`.
    ///
    /// # Panics
    /// If strips differ in length, are not aligned to [`ALIGNMENT`], or ISA-L refuses.
    pub fn pq_gen(&self, data: &[&[u8]], parity_count: &mut [&mut [u8]]) {
        let length = data[0].len();
        assert!(data.iter().all(|strip| strip.len() == length && strip.as_ptr().addr().is_multiple_of(ALIGNMENT)));
        assert!(
            parity_count.iter().all(|strip| strip.len() == length && strip.as_ptr().addr().is_multiple_of(ALIGNMENT))
        );
        assert!(length.is_multiple_of(ALIGNMENT) && parity_count.len() == 2);
        let mut array: [*mut c_void; 64] = [std::ptr::null_mut(); 64];
        for (entry, strip) in array.iter_mut().zip(data) {
            *entry = strip.as_ptr().cast_mut().cast();
        }
        for (entry, strip) in array[data.len()..].iter_mut().zip(parity_count) {
            *entry = strip.as_mut_ptr().cast();
        }
        // SAFETY: `array` holds data.len() + 2 strips, all `length` long and aligned; ISA-L writes
        // to the last two only.
        let result = unsafe { (self.pq_gen)(data.len() as c_int + 2, length as c_int, array.as_mut_ptr()) };
        assert_eq!(result, 0, "pq_gen refused");
    }

    /// The CRC-32C of `bytes`. ISA-L takes and returns the register without inversion.
    pub fn crc32c(&self, bytes: &[u8]) -> u32 {
        // SAFETY: ISA-L reads as many bytes as it is told, and writes none, although the pointer's
        // type would allow it.
        unsafe { !(self.crc32_iscsi)(bytes.as_ptr().cast_mut(), bytes.len() as c_int, !0) }
    }

    /// The tables for `ec_encode_data`, for a matrix of rows of `source_count` coefficients.
    pub fn tables(&self, matrix: &[u8], source_count: usize) -> Vec<u8> {
        let rows = matrix.len() / source_count;
        assert_eq!(matrix.len(), rows * source_count);
        let mut tables = vec![0; 32 * matrix.len()];
        // SAFETY: the matrix is rows * source_count long, the tables 32 times that, as
        // `erasure_code.h` requires.
        unsafe {
            (self.ec_init_tables)(source_count as c_int, rows as c_int, matrix.as_ptr(), tables.as_mut_ptr());
        }
        tables
    }

    /// Computes `out[r] = sum of matrix[r][i] * sources[i]`, with the tables of the matrix.
    pub fn encode_data(&self, tables: &[u8], sources: &[&[u8]], out: &mut [&mut [u8]]) {
        let length = sources[0].len();
        assert!(sources.iter().all(|strip| strip.len() == length) && out.iter().all(|strip| strip.len() == length));
        assert_eq!(tables.len(), 32 * sources.len() * out.len());
        let mut source_array = [std::ptr::null::<u8>(); 64];
        for (entry, strip) in source_array.iter_mut().zip(sources) {
            *entry = strip.as_ptr();
        }
        let mut out_array = [std::ptr::null_mut::<u8>(); 64];
        for (entry, strip) in out_array.iter_mut().zip(out.iter_mut()) {
            *entry = strip.as_mut_ptr();
        }
        // SAFETY: the arrays hold as many strips as the arguments say, all `length` long; the
        // tables are for that many strips.
        unsafe {
            (self.ec_encode_data)(
                length as c_int,
                sources.len() as c_int,
                out.len() as c_int,
                tables.as_ptr(),
                source_array.as_ptr(),
                out_array.as_ptr(),
            );
        }
    }
}

/// The file name of the loaded library, which ends in its version.
fn loaded_file() -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps.lines().filter_map(|line| line.split_once('/')).find(|(_, path)| path.contains("libisal"))?.1;
    path.rsplit('/').next().map(str::to_owned)
}
