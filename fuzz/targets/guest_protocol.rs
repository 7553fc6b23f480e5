//! The fuzzer's door to [`belljar_fuzz::guest_protocol`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| belljar_fuzz::guest_protocol::check(bytes));
