//! `rondel-sim --seeds N --from S --jobs J`: runs seeds and lists those that break a rule. `--seed S --trace` shows one of them.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rondel_sim::{Mutant, Options, Outcome, pumps, simulate};

const USAGE: &str = "usage: rondel-sim [--seeds N] [--from SEED] [--jobs N] [--mutant NAME] [--failures N] [--pumps]
       rondel-sim --seed SEED [--trace] [--mutant NAME] [--pumps]
       rondel-sim --mutants";

#[derive(Debug)]
struct Args {
    seeds: u64,
    from: u64,
    jobs: u64,
    failures: u64,
    seed: Option<u64>,
    keeps_lines: bool,
    mutant: Option<Mutant>,
    /// Whether to run the world of pump jobs instead of the general one.
    has_pumps: bool,
}

impl Args {
    fn run(&self, seed: u64) -> Outcome {
        let options = Options { keeps_lines: self.keeps_lines && self.seed.is_some(), mutant: self.mutant };
        if self.has_pumps { pumps(seed, options) } else { simulate(seed, options) }
    }
}

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)) {
        Err(message) => {
            print(&format!("{message}\n{USAGE}"));
            ExitCode::from(2)
        }
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(args)) => match args.seed {
            Some(seed) => run_seed(seed, &args),
            None => run_seeds(&args),
        },
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Args>, String> {
    let mut args = Args {
        seeds: 1_000,
        from: 1,
        jobs: 2,
        failures: 20,
        seed: None,
        keeps_lines: false,
        mutant: None,
        has_pumps: false,
    };
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().unwrap_or_default();
            value.replace('_', "").parse::<u64>().map_err(|_| format!("{word} needs a number, not {value:?}"))
        };
        match word.as_str() {
            "--seeds" => args.seeds = number()?,
            "--from" => args.from = number()?,
            "--jobs" => args.jobs = number()?.max(1),
            "--failures" => args.failures = number()?.max(1),
            "--seed" => args.seed = Some(number()?),
            "--pumps" => args.has_pumps = true,
            "--trace" => args.keeps_lines = true,
            "--mutant" => args.mutant = Some(mutant(&words.next().unwrap_or_default())?),
            "--mutants" => {
                Mutant::ALL.iter().for_each(|(name, _)| print(name));
                return Ok(None);
            }
            _ => return Err(format!("unknown argument {word:?}")),
        }
    }
    Ok(Some(args))
}

fn mutant(name: &str) -> Result<Mutant, String> {
    if cfg!(not(debug_assertions)) {
        return Err("this build has no mutants: they are for builds with debug assertions (--profile sim)".to_owned());
    }
    let named_mutant = Mutant::ALL.iter().find(|(known_name, _)| *known_name == name);
    named_mutant.map(|(_, mutant)| *mutant).ok_or_else(|| format!("there is no mutant {name:?}; see --mutants"))
}

#[expect(clippy::print_stdout, reason = "a program for a terminal")]
fn print(line: &str) {
    println!("{line}");
}

fn run_seed(seed: u64, args: &Args) -> ExitCode {
    let outcome = args.run(seed);
    outcome.lines.iter().for_each(|line| print(line));
    report(&outcome);
    if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn report(outcome: &Outcome) {
    let Outcome { seed, hash, start_count, run_count, seconds, .. } = outcome;
    print(&format!("seed {seed}: {start_count} starts, {run_count} runs, {seconds} s, trace {hash:016x}"));
    outcome.violations.iter().for_each(|violation| print(&format!("  {violation}")));
}

fn run_seeds(args: &Args) -> ExitCode {
    let next_seed = AtomicU64::new(args.from);
    let end_seed = args.from.saturating_add(args.seeds);
    let (failed_count, must_stop, output_lock) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(()));
    let began_at = tokio::time::Instant::now();
    let (start_count, run_count, seconds) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(|| {
                loop {
                    let seed = next_seed.fetch_add(1, Ordering::Relaxed);
                    if seed >= end_seed || must_stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let outcome = args.run(seed);
                    start_count.fetch_add(outcome.start_count as u64, Ordering::Relaxed);
                    run_count.fetch_add(outcome.run_count as u64, Ordering::Relaxed);
                    seconds.fetch_add(outcome.seconds, Ordering::Relaxed);
                    let _guard = output_lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    if !outcome.violations.is_empty() {
                        report(&outcome);
                        if failed_count.fetch_add(1, Ordering::Relaxed) + 1 >= args.failures {
                            must_stop.store(true, Ordering::Relaxed);
                        }
                    }
                    let done_count = seed - args.from + 1;
                    if done_count.is_multiple_of(10_000) {
                        print(&format!("{done_count} seeds, {:.0} a minute", rate(done_count, began_at.elapsed())));
                    }
                }
            });
        }
    });
    let failed_count = failed_count.into_inner();
    let done_count = next_seed.into_inner().min(end_seed) - args.from;
    print(&format!(
        "{done_count} seeds in {:.0} s ({:.0} a minute): {} simulated hours, {} runs, {} starts; {failed_count} break a rule",
        began_at.elapsed().as_secs_f64(),
        rate(done_count, began_at.elapsed()),
        seconds.into_inner() / 3600,
        run_count.into_inner(),
        start_count.into_inner(),
    ));
    if failed_count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn rate(done_count: u64, elapsed: std::time::Duration) -> f64 {
    done_count as f64 * 60.0 / elapsed.as_secs_f64().max(0.001)
}
