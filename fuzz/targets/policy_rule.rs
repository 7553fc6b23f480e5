//! The fuzzer's door to [`belljar_fuzz::policy_rule`].

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| belljar_fuzz::policy_rule::check(bytes));
