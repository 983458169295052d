//! Memory that s2n-tls reads ciphertext from and writes it to while one of its functions runs.
//! s2n-tls keeps no pointer to the caller's ciphertext between calls. So ciphertext is received and
//! sent in the caller's buffers.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use s2n_tls::connection::Connection;

/// The data of the callbacks. Between calls both ranges are empty.
struct Wire {
    input: *const u8,
    input_bytes: usize,
    output: *mut u8,
    output_bytes: usize,
    /// Output for which there was no room.
    spilled: Vec<u8>,
}

/// A connection and the memory of its callbacks. Invariant: the connection uses `wire` only through
/// the callbacks below. s2n-tls calls them only inside a call to it, on the same thread.
pub(crate) struct Wired {
    connection: Connection,
    wire: NonNull<Wire>,
}

// SAFETY: the connection is `Send`, and `wire` is owned: only the connection has another pointer to
// it, and it moves along.
unsafe impl Send for Wired {}

impl Wired {
    pub fn new(mut connection: Connection) -> Result<Wired, s2n_tls::error::Error> {
        connection.set_receive_callback(Some(receive))?.set_send_callback(Some(send))?;
        let wire =
            Wire { input: ptr::null(), input_bytes: 0, output: ptr::null_mut(), output_bytes: 0, spilled: Vec::new() };
        let mut wired = Wired { connection, wire: NonNull::from(Box::leak(Box::new(wire))) };
        let context: *mut c_void = wired.wire.as_ptr().cast();
        // SAFETY: `wire` is freed in `drop`. After that no callback is called, because no function
        // of the connection is called any more.
        unsafe { wired.connection.set_receive_context(context)?.set_send_context(context)? };
        Ok(wired)
    }

    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    pub fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Runs `call`, which may take ciphertext from `input` and put some into `output`. Output that
    /// does not fit is kept. Returns how many bytes it took, and how many it put.
    pub fn run<T>(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        call: impl FnOnce(&mut Connection) -> T,
    ) -> (T, usize, usize) {
        // SAFETY: `wire` is owned and was created by `new`. No callback runs now, so no other code
        // uses it. The same holds after the call.
        let wire = unsafe { &mut *self.wire.as_ptr() };
        (wire.input, wire.input_bytes) = (input.as_ptr(), input.len());
        (wire.output, wire.output_bytes) = (output.as_mut_ptr(), output.len());
        // If the call unwinds, the ranges stay: code that catches the panic must not use the
        // session any more. Both ranges are set again before each call.
        let done = call(&mut self.connection);
        // SAFETY: as above.
        let wire = unsafe { &mut *self.wire.as_ptr() };
        let (left, free) = (wire.input_bytes, wire.output_bytes);
        (wire.input, wire.input_bytes) = (ptr::null(), 0);
        (wire.output, wire.output_bytes) = (ptr::null_mut(), 0);
        (done, input.len() - left, output.len() - free)
    }

    /// Output for which there was no room, in order.
    pub fn take_spilled(&mut self) -> Vec<u8> {
        // SAFETY: as in `run`.
        std::mem::take(unsafe { &mut (*self.wire.as_ptr()).spilled })
    }
}

impl Drop for Wired {
    fn drop(&mut self) {
        // SAFETY: it was leaked in `new`, and this is the only place that frees it. The connection
        // is dropped afterwards, which frees memory and calls no callback.
        drop(unsafe { Box::from_raw(self.wire.as_ptr()) });
    }
}

/// Passes ciphertext to s2n-tls, or reports that there is none at present.
///
/// # Safety
/// `context` is the one that `Wired::new` has set, `to` has room for `max` bytes, and the call
/// comes from inside of `Wired::run`.
unsafe extern "C" fn receive(context: *mut c_void, to: *mut u8, max: u32) -> c_int {
    // SAFETY: the contract: no other code uses it while s2n-tls runs.
    let wire = unsafe { &mut *context.cast::<Wire>() };
    let len = wire.input_bytes.min(max as usize).min(c_int::MAX as usize);
    if len == 0 {
        return blocked();
    }
    // SAFETY: `run` was given this many bytes at `input`, and they do not overlap with s2n-tls's
    // own buffer.
    unsafe { ptr::copy_nonoverlapping(wire.input, to, len) };
    // SAFETY: within the bytes, or directly after the last one.
    wire.input = unsafe { wire.input.add(len) };
    wire.input_bytes -= len;
    len as c_int
}

/// Takes all ciphertext from s2n-tls.
///
/// # Safety
/// `context` is the one that `Wired::new` has set, `from` has `len` bytes, and the call comes from
/// inside of `Wired::run`.
unsafe extern "C" fn send(context: *mut c_void, from: *const u8, len: u32) -> c_int {
    // SAFETY: the contract: no other code uses it while s2n-tls runs.
    let wire = unsafe { &mut *context.cast::<Wire>() };
    let bytes = len as usize;
    // Later output must not overtake output that was kept.
    if wire.spilled.is_empty() && bytes <= wire.output_bytes {
        // SAFETY: `run` was given room for this many bytes at `output`, and they do not overlap
        // with s2n-tls's own buffer.
        unsafe { ptr::copy_nonoverlapping(from, wire.output, bytes) };
        // SAFETY: within the bytes, or directly after the last one.
        wire.output = unsafe { wire.output.add(bytes) };
        wire.output_bytes -= bytes;
    } else {
        // SAFETY: the contract.
        wire.spilled.extend_from_slice(unsafe { std::slice::from_raw_parts(from, bytes) });
    }
    len as c_int
}

/// The result of a callback that has no data at present.
fn blocked() -> c_int {
    // SAFETY: the function returns the address of this thread's own errno.
    unsafe { *libc::__errno_location() = libc::EWOULDBLOCK };
    -1
}
