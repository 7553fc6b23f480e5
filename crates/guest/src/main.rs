//! The program that is the first process inside every sandbox; see the library.

// What the standard library does before an ordinary `main` (finding the stack's guard page in `/proc`, handlers and a
// second stack for when it overflows) costs a tenth of a millisecond and is of no use to a first process.
#![no_main]

use std::ffi::{c_char, c_int};

/// Where the C library begins.
// SAFETY: the one symbol of this name in the program, with the signature that the C library calls.
#[unsafe(no_mangle)]
extern "C" fn main(_count: c_int, _arguments: *const *const c_char) -> c_int {
    c_int::from(belljar_guest::main())
}
