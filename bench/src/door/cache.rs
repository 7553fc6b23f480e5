//! An installation from a registry behind a slow line: with what was kept for it, and without.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use belljar_core::{ByteSize, ExecRequest, Limits, NetworkPolicy, Rule, Rules, SandboxSpec};

use super::world::{SERVER, World, free, rule};
use crate::args::Args;
use crate::bell;
use crate::error::{BenchError, Result, at};
use crate::print;
use crate::report::{Report, Table};
use crate::statistics::Samples;

/// What the line carries, in bytes a second: 20 Mbit.
const LINE: u64 = 2_500_000;
/// The packages, and about how long each is: as pandas and what it needs.
const PACKAGES: [(&str, usize); 5] =
    [("one", 13_000_000), ("two", 17_000_000), ("three", 350_000), ("four", 230_000), ("five", 11_000)];
/// Makes a wheel of what is in a file.
const MAKE: &str = "import sys, zipfile
name, source = sys.argv[1:]
with zipfile.ZipFile(f'{name}-1.0-py3-none-any.whl', 'w') as wheel:
    wheel.write(source, f'{name}/data')
    info = f'{name}-1.0.dist-info'
    wheel.writestr(f'{info}/METADATA', f'Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n')
    wheel.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\\nGenerator: bench\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr(f'{info}/RECORD', '')";

pub(super) async fn measure(args: &Args, world: &World, scratch: &Path, report: &mut Report) -> Result<()> {
    let registry = scratch.join("registry");
    furnish(&registry)?;
    let _server = world.certificates().serve_files(&registry, LINE)?;
    let rounds = args.rounds_or(5, 2);
    let mut times = [Samples::default(), Samples::default()];
    // Somebody must be the first.
    install(world, true).await?;
    let before = fetched(&registry)?;
    for round in 0..rounds {
        eprint!("\rdoor, cache: round {} of {rounds}", round + 1);
        for (times, is_kept) in times.iter_mut().zip([false, true]) {
            times.push(install(world, is_kept).await?);
        }
    }
    eprintln!();
    let fetched = fetched(&registry)? - before;
    let all: usize = PACKAGES.iter().map(|(_, length)| length).sum();
    // Each of those without took all of them once; whatever is beyond that was fetched in spite of the cache.
    let in_spite = fetched.saturating_sub(rounds as u64 * before);
    let columns = ["packages", "median s", "p99 s", "without/with"];
    let title = format!("pip install of {} MB over 20 Mbit/s, in a fresh sandbox", all / 1_000_000);
    let mut table = Table::new(&title, &columns);
    let [without, with] = &times;
    let ratio = without.median().zip(with.median()).map(|(without, with)| without / with);
    for (name, key, times) in [("from the registry", "without", without), ("kept", "with", with)] {
        if let Some(median) = times.median() {
            report.set(format!("door.cache.{key}.median_s"), median);
        }
        let ratio = ratio.filter(|_| key == "with");
        print::row(&mut table, name, &[times.median(), times.p99(), ratio]);
    }
    if let Some(ratio) = ratio {
        report.set("door.cache.faster", ratio);
    }
    report.set("door.cache.fetched_in_spite_bytes", in_spite as f64);
    table
        .notes
        .push(format!("Bytes of packages that the registry sent to sandboxes with the cache: {in_spite}."));
    report.tables.push(table);
    Ok(())
}

/// Makes packages that nobody has seen, and pages that name them.
fn furnish(registry: &Path) -> Result<()> {
    let files = registry.join("files");
    fs::create_dir_all(&files).map_err(at(&files))?;
    let noise = registry.join("noise");
    for (name, length) in PACKAGES {
        let mut bytes = Vec::new();
        let source = Path::new("/dev/urandom");
        File::open(source)
            .and_then(|file| file.take(length as u64).read_to_end(&mut bytes))
            .map_err(at(source))?;
        fs::write(&noise, &bytes).map_err(at(&noise))?;
        shell(Command::new("python3").args(["-c", MAKE, name]).arg(&noise).current_dir(&files))?;
        let file = format!("{name}-1.0-py3-none-any.whl");
        let sum = shell(Command::new("sha256sum").arg(&file).current_dir(&files))?;
        let hash = sum.split_whitespace().next().unwrap_or_default();
        let page = registry.join("simple").join(name);
        fs::create_dir_all(&page).map_err(at(&page))?;
        let page = page.join("index.html");
        fs::write(&page, format!("<a href=\"../../files/{file}#sha256={hash}\">{file}</a>"))
            .map_err(at(&page))?;
    }
    Ok(())
}

fn shell(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|source| BenchError::Start { program: program.clone(), source })?;
    if !output.status.success() {
        return Err(BenchError::Failed {
            program,
            why: String::from_utf8_lossy(&output.stderr).into_owned(),
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// How many bytes of packages the registry has sent.
fn fetched(registry: &Path) -> Result<u64> {
    let path = registry.with_extension("asked");
    let text = fs::read_to_string(&path).map_err(at(&path))?;
    let lengths =
        text.lines().filter(|line| line.contains(".whl")).filter_map(|line| line.rsplit(' ').next());
    Ok(lengths.filter_map(|length| length.parse::<u64>().ok()).sum())
}

/// Installs everything in a new sandbox; answers how many seconds that took.
async fn install(world: &World, is_kept: bool) -> Result<f64> {
    let allow: Vec<Rule> =
        [SERVER.1.to_owned(), format!("{}:443", SERVER.0)].into_iter().map(rule).collect::<Result<_>>()?;
    let network = NetworkPolicy::Allowlist(Rules { allow, limits: free(), ..Rules::default() });
    let cache = if is_kept { vec![rule(SERVER.1.to_owned())?] } else { Vec::new() };
    let limits = Limits { memory: ByteSize::gib(2), ..Limits::default() };
    let sandbox = world.bell.make(SandboxSpec { limits, network, cache, ..SandboxSpec::default() }).await?;
    let names = PACKAGES.map(|(name, _)| name).join(" ");
    let line = format!(
        "pip install -q --no-deps --no-compile --no-cache-dir --disable-pip-version-check --trusted-host {0} \
         --target site -i https://{0}/simple {names}",
        SERVER.1
    );
    let start = Instant::now();
    bell::run(&*sandbox, ExecRequest::argv(["sh", "-c", &line])).await?;
    let took = start.elapsed().as_secs_f64();
    sandbox.cleanup().await?;
    Ok(took)
}
