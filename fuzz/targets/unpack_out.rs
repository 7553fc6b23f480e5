//! The fuzzer's door to [`belljar_fuzz::unpack_out`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| belljar_fuzz::unpack_out::check(bytes));
