//! The fuzzer's door to [`belljar_fuzz::spool`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| belljar_fuzz::spool::check(bytes));
