//! The fuzzer's door to [`belljar_fuzz::cache_index`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| belljar_fuzz::cache_index::check(bytes));
