//! Compares our cron engine with the crates `cron` and `croner`, on the Quartz vectors for which all three compute the same
//! fires.
//!
//! `cargo bench -p rondel-core`: `parse` parses each expression, `next` computes the next five fires of each in its time zone.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot continue panics")]
#![expect(clippy::print_stdout, reason = "how many vectors are measured belongs to the figures")]

use std::hint::black_box;
use std::str::FromStr as _;

use chrono::{DateTime, Utc};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use croner::parser::{CronParser, Seconds};
use rondel_core::Timestamp;
use rondel_core::cron::{CronExpr, DstRule, Tz, parse_zone};

/// How many successive fires of each expression are computed.
const FIRE_COUNT: usize = 5;

/// A test vector, parsed by each of the three libraries.
struct Case {
    text: String,
    zone: Tz,
    after: Timestamp,
    local: DateTime<Tz>,
    ours: CronExpr,
    cron: cron::Schedule,
    croner: croner::Cron,
}

fn croner_parser() -> CronParser {
    CronParser::builder().seconds(Seconds::Required).alternative_weekdays(true).build()
}

/// The vectors that all three libraries parse, and for which they compute the same fires.
fn cases() -> Vec<Case> {
    let lines = include_str!("../tests/vectors/quartz-vectors.tsv").lines();
    let cases: Vec<Case> = lines.filter(|line| !line.starts_with('#')).filter_map(case).collect();
    println!("{} of the vectors are read alike by all three", cases.len());
    cases
}

fn case(line: &str) -> Option<Case> {
    let mut columns = line.split('\t');
    let (text, zone, after) = (columns.next()?, columns.next()?, columns.next()?);
    let (zone, after) = (parse_zone(zone).ok()?, after.parse::<Timestamp>().ok()?);
    let case = Case {
        text: text.to_owned(),
        zone,
        after,
        local: after.to_utc()?.with_timezone(&zone),
        ours: CronExpr::parse(text).ok()?,
        cron: cron::Schedule::from_str(text).ok()?,
        croner: croner_parser().parse(text).ok()?,
    };
    let seconds = |at: DateTime<Tz>| Timestamp::from(at.with_timezone(&Utc));
    let mut found: Vec<Timestamp> = Vec::new();
    ours(&case, |at| found.push(at));
    let mut others = [Vec::new(), Vec::new()];
    of_cron(&case, |at| others[0].push(seconds(at)));
    of_croner(&case, |at| others[1].push(seconds(at)));
    others.iter().all(|other| *other == found).then_some(case)
}

fn ours(case: &Case, mut each: impl FnMut(Timestamp)) {
    let mut at = case.after;
    for _ in 0..FIRE_COUNT {
        let Some(next) = case.ours.next_after(case.zone, DstRule::default(), at) else { return };
        each(next);
        at = next;
    }
}

fn of_cron(case: &Case, each: impl FnMut(DateTime<Tz>)) {
    case.cron.after(&case.local).take(FIRE_COUNT).for_each(each);
}

fn of_croner(case: &Case, mut each: impl FnMut(DateTime<Tz>)) {
    let mut at = case.local;
    for _ in 0..FIRE_COUNT {
        let Ok(next) = case.croner.find_next_occurrence(&at, false) else { return };
        each(next);
        at = next;
    }
}

fn parse(criterion: &mut Criterion) {
    let cases = cases();
    let mut group = criterion.benchmark_group("parse");
    group.throughput(Throughput::Elements(cases.len() as u64));
    let texts: Vec<&str> = cases.iter().map(|case| case.text.as_str()).collect();
    group.bench_function("rondel", |bench| {
        bench.iter(|| {
            texts.iter().for_each(|text| {
                black_box(CronExpr::parse(black_box(text)).unwrap());
            })
        });
    });
    group.bench_function("cron", |bench| {
        bench.iter(|| {
            texts.iter().for_each(|text| {
                black_box(cron::Schedule::from_str(black_box(text)).unwrap());
            })
        });
    });
    let parser = croner_parser();
    group.bench_function("croner", |bench| {
        bench.iter(|| {
            texts.iter().for_each(|text| {
                black_box(parser.parse(black_box(text)).unwrap());
            })
        });
    });
    group.finish();
}

fn next(criterion: &mut Criterion) {
    let cases = cases();
    let fire_count = |case: &Case| {
        let mut count = 0;
        ours(case, |_| count += 1);
        count
    };
    let mut group = criterion.benchmark_group("next");
    group.throughput(Throughput::Elements(cases.iter().map(fire_count).sum()));
    group.bench_function("rondel", |bench| {
        bench.iter(|| {
            cases.iter().for_each(|case| {
                ours(black_box(case), |at| {
                    black_box(at);
                })
            })
        });
    });
    group.bench_function("cron", |bench| {
        bench.iter(|| {
            cases.iter().for_each(|case| {
                of_cron(black_box(case), |at| {
                    black_box(at);
                })
            })
        });
    });
    group.bench_function("croner", |bench| {
        bench.iter(|| {
            cases.iter().for_each(|case| {
                of_croner(black_box(case), |at| {
                    black_box(at);
                })
            })
        });
    });
    group.finish();
}

criterion_group!(benches, parse, next);
criterion_main!(benches);
