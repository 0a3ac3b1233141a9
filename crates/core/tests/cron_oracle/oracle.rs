//! The walk through time that finds which instants fire.

use chrono::{DateTime, NaiveDateTime, Offset, TimeZone};
use rondel_core::Timestamp;
use rondel_core::cron::{DstRule, Fold, Gap, Tz};

use crate::spec::{Days, Spec};

/// A change of a zone's offset: its instant, and the offsets before and after it, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) at: i64,
    pub(crate) before: i64,
    pub(crate) after: i64,
}

pub(crate) fn utc(at: i64) -> NaiveDateTime {
    DateTime::from_timestamp(at, 0).unwrap().naive_utc()
}

pub(crate) fn offset(zone: Tz, at: i64) -> i64 {
    zone.offset_from_utc_datetime(&utc(at)).fix().local_minus_utc().into()
}

pub(crate) fn changes(zone: Tz, from: i64, to: i64, step: i64) -> Vec<Change> {
    let mut found = Vec::new();
    let mut at = from;
    while at < to {
        let (mut early, mut late) = (at, at + step);
        let (before, after) = (offset(zone, early), offset(zone, late));
        while before != after && late - early > 1 {
            let middle = early.midpoint(late);
            if offset(zone, middle) == before { early = middle } else { late = middle }
        }
        if before != after {
            found.push(Change { at: late, before, after });
        }
        at += step;
    }
    found
}

/// Decides instant by instant whether an expression fires in a zone under a DST rule.
pub(crate) struct Oracle<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) zone: Tz,
    pub(crate) changes: Vec<Change>,
    first_offset: i64,
    gap: Gap,
    overlap: Fold,
}

pub(crate) const LONGEST_CHANGE: i64 = 26 * 3600;

impl<'a> Oracle<'a> {
    pub(crate) fn new(spec: &'a Spec, zone: Tz, rule: DstRule, from: i64, to: i64) -> Self {
        let fixed = spec.hour.is_fixed();
        let gap = match rule.gap {
            Gap::Auto if fixed => Gap::NextValid,
            Gap::Auto => Gap::Skip,
            chosen => chosen,
        };
        let overlap = match rule.overlap {
            Fold::Auto if fixed => Fold::First,
            Fold::Auto => Fold::Both,
            chosen => chosen,
        };
        let changes = changes(zone, from - LONGEST_CHANGE, to + LONGEST_CHANGE, 900);
        Self { spec, zone, changes, first_offset: offset(zone, from - LONGEST_CHANGE), gap, overlap }
    }

    pub(crate) fn fires_at(&self, at: i64) -> bool {
        let catch_up = self.gap == Gap::NextValid
            && self.changes.iter().any(|change| {
                change.at == at && (at + change.before..at + change.after).any(|local| self.spec.has(utc(local)))
            });
        catch_up || (self.spec.has(utc(at + offset(self.zone, at))) && self.shown_rightly(at))
    }

    pub(crate) fn shown_rightly(&self, at: i64) -> bool {
        let shown_before = self.changes.iter().any(|it| (it.at..it.at + it.before - it.after).contains(&at));
        let shown_again = self.changes.iter().any(|it| (it.at - it.before + it.after..it.at).contains(&at));
        match self.overlap {
            Fold::First => !shown_before,
            Fold::Second => !shown_again,
            Fold::Auto | Fold::Both => true,
        }
    }

    /// All fires in a span. The walk goes by minutes if seconds make no difference.
    pub(crate) fn walk(&self, from: i64, to: i64) -> Vec<Timestamp> {
        let step = if self.minutes_suffice() { 60 } else { 1 };
        let start = from.div_euclid(60) * 60;
        (start..=to).step_by(step).filter(|at| *at > from && self.fires_at(*at)).map(Timestamp::from_secs).collect()
    }

    pub(crate) fn minutes_suffice(&self) -> bool {
        let odd = |it: &Change| [it.at, it.before, it.after].iter().any(|it| it % 60 != 0);
        let only_zero = self.spec.second.is_fixed() && (1..60).all(|second| !self.spec.second.has(second));
        (only_zero || matches!(self.spec.days, Days::Unix(..)))
            && self.first_offset % 60 == 0
            && !self.changes.iter().any(odd)
    }
}
