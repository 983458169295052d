//! libFuzzer inside of this program. The program starts itself again as libFuzzer, see
//! [`crate::guided`].

use std::ffi::{CString, c_char, c_int};
use std::os::unix::ffi::OsStringExt;
use std::process::{self, ExitCode};
use std::sync::OnceLock;
use std::{env, ptr};

use fuzz::{Finding, Target, examine};

unsafe extern "C" {
    /// Runs libFuzzer with a command line. It exits the process in most cases.
    fn LLVMFuzzerRunDriver(
        argc: *mut c_int,
        argv: *mut *mut *mut c_char,
        callback: unsafe extern "C" fn(*const u8, usize) -> c_int,
    ) -> c_int;

    /// The callback, which `libfuzzer-sys` defines. It calls the function of `fuzz_target!`.
    fn LLVMFuzzerTestOneInput(data: *const u8, len: usize) -> c_int;
}

static TARGET: OnceLock<&'static Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|input: &[u8]| run_one(input));

/// Runs one input. A violation aborts the process, which libFuzzer notices: it stores the input.
fn run_one(input: &[u8]) {
    let target = TARGET.get().expect("it is set before libFuzzer starts");
    let Err(finding) = examine(target, input) else { return };
    eprintln!("{}: {finding}", target.name);
    // libFuzzer takes two crashes for the same bug when it minimises one if these lines are equal.
    match &finding {
        Finding::Panic { place, .. } => eprintln!("DEDUP_TOKEN: {place}"),
        Finding::Memory { .. } | Finding::Time { .. } => eprintln!("DEDUP_TOKEN: memory"),
    }
    process::abort();
}

/// Runs libFuzzer for this target with the process' own command line.
pub(crate) fn run(target: &'static Target) -> ExitCode {
    TARGET.set(target).expect("it runs once");
    let arguments: Vec<CString> = env::args_os()
        .map(|argument| CString::new(argument.into_vec()).expect("an argument of a process has no zero"))
        .collect();
    let mut pointers: Vec<*mut c_char> = arguments.iter().map(|argument| argument.as_ptr().cast_mut()).collect();
    let mut count = c_int::try_from(pointers.len()).expect("a command line is short");
    pointers.push(ptr::null_mut());
    let mut argv = pointers.as_mut_ptr();
    // SAFETY: `argv` has `count` strings and a null pointer behind them. They outlive the call, and
    // libFuzzer does not write to the strings. The callback takes any bytes.
    let status = unsafe { LLVMFuzzerRunDriver(&mut count, &mut argv, LLVMFuzzerTestOneInput) };
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}
