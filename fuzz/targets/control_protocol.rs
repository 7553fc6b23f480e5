//! The fuzzer's door to [`belljar_fuzz::control_protocol`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| belljar_fuzz::control_protocol::check(bytes));
