//! Memory that s2n-tls reads ciphertext from and writes it to while one of its functions runs:
//! nothing of it is kept between calls, so that ciphertext is received and sent where the caller
//! has it.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use s2n_tls::connection::Connection;

/// What the callbacks see. Between calls both ranges are empty.
struct Wire {
    input: *const u8,
    input_bytes: usize,
    output: *mut u8,
    output_bytes: usize,
    /// Output for which no place was given.
    spilled: Vec<u8>,
}

/// A connection and the memory that its callbacks use. Invariant: the connection has no other use
/// of `wire` than through the callbacks below, which s2n-tls calls only from inside of a call to
/// it, on the same thread.
pub(crate) struct Wired {
    connection: Connection,
    wire: NonNull<Wire>,
}

// SAFETY: the connection is `Send`, and `wire` is owned: nobody else has a pointer to it but the
// connection, which goes along.
unsafe impl Send for Wired {}

impl Wired {
    pub fn new(mut connection: Connection) -> Result<Wired, s2n_tls::error::Error> {
        connection.set_receive_callback(Some(receive))?.set_send_callback(Some(send))?;
        let wire =
            Wire { input: ptr::null(), input_bytes: 0, output: ptr::null_mut(), output_bytes: 0, spilled: Vec::new() };
        let mut wired = Wired { connection, wire: NonNull::from(Box::leak(Box::new(wire))) };
        let context: *mut c_void = wired.wire.as_ptr().cast();
        // SAFETY: `wire` is freed in `drop`, after which no callback is called: nothing is called
        // on the connection any more.
        unsafe { wired.connection.set_receive_context(context)?.set_send_context(context)? };
        Ok(wired)
    }

    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    pub fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Runs `call`, which may take ciphertext from `input` and put some into `output`, and what
    /// does not fit is kept. Gives how many bytes it took, and how many it put.
    pub fn run<T>(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        call: impl FnOnce(&mut Connection) -> T,
    ) -> (T, usize, usize) {
        // SAFETY: `wire` is owned and was made by `new`; no callback runs now, so nobody else uses
        // it. The same after the call.
        let wire = unsafe { &mut *self.wire.as_ptr() };
        (wire.input, wire.input_bytes) = (input.as_ptr(), input.len());
        (wire.output, wire.output_bytes) = (output.as_mut_ptr(), output.len());
        // If it unwinds, the ranges stay: whoever catches that must not use the session any more.
        // Both ranges are set anew before each call.
        let done = call(&mut self.connection);
        // SAFETY: as above.
        let wire = unsafe { &mut *self.wire.as_ptr() };
        let (left, free) = (wire.input_bytes, wire.output_bytes);
        (wire.input, wire.input_bytes) = (ptr::null(), 0);
        (wire.output, wire.output_bytes) = (ptr::null_mut(), 0);
        (done, input.len() - left, output.len() - free)
    }

    /// What there was no place for, in order.
    pub fn take_spilled(&mut self) -> Vec<u8> {
        // SAFETY: as in `run`.
        std::mem::take(unsafe { &mut (*self.wire.as_ptr()).spilled })
    }
}

impl Drop for Wired {
    fn drop(&mut self) {
        // SAFETY: it was leaked in `new`, and this is the only place that frees it. What follows,
        // the drop of the connection, frees memory and calls no callback.
        drop(unsafe { Box::from_raw(self.wire.as_ptr()) });
    }
}

/// Gives s2n-tls ciphertext, or says that there is none now.
///
/// # Safety
/// `context` is what `Wired::new` has set, `to` has room for `max` bytes, and the call comes from
/// inside of `Wired::run`.
unsafe extern "C" fn receive(context: *mut c_void, to: *mut u8, max: u32) -> c_int {
    // SAFETY: the contract: nobody else uses it while s2n-tls runs.
    let wire = unsafe { &mut *context.cast::<Wire>() };
    let len = wire.input_bytes.min(max as usize).min(c_int::MAX as usize);
    if len == 0 {
        return blocked();
    }
    // SAFETY: `run` was given so many bytes at `input`, and they are not those of s2n-tls' own
    // buffer.
    unsafe { ptr::copy_nonoverlapping(wire.input, to, len) };
    // SAFETY: within the bytes, or behind the last one.
    wire.input = unsafe { wire.input.add(len) };
    wire.input_bytes -= len;
    len as c_int
}

/// Takes ciphertext from s2n-tls, all of it.
///
/// # Safety
/// `context` is what `Wired::new` has set, `from` has `len` bytes, and the call comes from inside
/// of `Wired::run`.
unsafe extern "C" fn send(context: *mut c_void, from: *const u8, len: u32) -> c_int {
    // SAFETY: the contract: nobody else uses it while s2n-tls runs.
    let wire = unsafe { &mut *context.cast::<Wire>() };
    let bytes = len as usize;
    // What comes later may not overtake what was kept.
    if wire.spilled.is_empty() && bytes <= wire.output_bytes {
        // SAFETY: `run` was given room for so many bytes at `output`, which are not those of
        // s2n-tls' own buffer.
        unsafe { ptr::copy_nonoverlapping(from, wire.output, bytes) };
        // SAFETY: within the bytes, or behind the last one.
        wire.output = unsafe { wire.output.add(bytes) };
        wire.output_bytes -= bytes;
    } else {
        // SAFETY: the contract.
        wire.spilled.extend_from_slice(unsafe { std::slice::from_raw_parts(from, bytes) });
    }
    len as c_int
}

/// How a callback says that it has nothing now.
fn blocked() -> c_int {
    // SAFETY: it gives this thread's own number.
    unsafe { *libc::__errno_location() = libc::EWOULDBLOCK };
    -1
}
