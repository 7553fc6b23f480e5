//! The privileged helper that Belljar starts: it forks a launcher for each sandbox, which forks the monitor. Also proves
//! kernel features for `belljar doctor`.

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(feature = "ablation")]
    if let Err(error) = belljar_core::wall::ablation::read() {
        eprintln!("belljar-jail: {error}");
        return ExitCode::from(2);
    }
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("nursery") => ExitCode::from(belljar_jail::nursery::run() as u8),
        Some("doctor") => ExitCode::from(belljar_jail::doctor::run() as u8),
        _ => {
            eprintln!("belljar-jail is started by belljar itself; run `belljar --help`");
            ExitCode::from(2)
        }
    }
}
