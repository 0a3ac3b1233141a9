//! A job's definition from a file or from flags. The server validates it.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value, json};

use crate::exit::Failure;
use crate::input;

/// A definition: a file, or a name with flags.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rondel job create --name report.daily --app billing --handler report --cron \"0 30 2 * * ?\" --time-zone Asia/Shanghai\n  rondel job create --name ping --app tools --handler http --every 30s --params '{\"url\": \"http://127.0.0.1/\"}'\n  rondel job create -f report.json"
)]
pub(crate) struct DefinitionArgs {
    /// A JSON file with the definition; - for stdin
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["name", "app", "handler", "description", "cron", "tz", "every", "at", "params", "overrides", "route", "overlap", "delivery", "on_silence", "timeout", "retries", "success_by", "success_by_zone", "no_success_for", "longer_than", "late", "disabled"])]
    file: Option<PathBuf>,
    /// The job's name
    #[arg(long, value_name = "NAME", required_unless_present = "file")]
    name: Option<String>,
    /// The app whose executors run the job
    #[arg(long, value_name = "NAME", required_unless_present = "file")]
    app: Option<String>,
    /// The handler in that app
    #[arg(long, value_name = "NAME", required_unless_present = "file")]
    handler: Option<String>,
    /// What the job is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Fires by a cron expression
    #[arg(long, value_name = "EXPR", conflicts_with_all = ["every", "at"])]
    cron: Option<String>,
    /// The IANA time zone that the cron expression is read in
    #[arg(long = "time-zone", alias = "tz", value_name = "ZONE", requires = "cron", conflicts_with_all = ["every", "at"])]
    tz: Option<String>,
    /// Fires at a fixed rate, the first time when the job is created
    #[arg(long, value_name = "DURATION", conflicts_with = "at")]
    every: Option<String>,
    /// Fires once, at an RFC 3339 instant
    #[arg(long, value_name = "INSTANT")]
    at: Option<String>,
    /// The parameters of the handler, as JSON
    #[arg(long, value_name = "JSON")]
    params: Option<String>,
    /// Which parameters a run may change: none, all, or JSON pointers such as /day,/region; by default as the handler defines
    #[arg(long, value_name = "WHICH", value_delimiter = ',')]
    overrides: Vec<String>,
    /// Which executor gets a run: round (the default), first, last, random, `consistent_hash`, lfu, lru, failover,
    /// busyover, weight, `least_active`, or broadcast for all of them
    #[arg(long, value_name = "ROUTE")]
    route: Option<String>,
    /// What happens if an earlier run has not ended: serial (the run waits; the default), discard (the run is skipped),
    /// cover (the earlier run is cancelled first) or allow
    #[arg(long, value_name = "POLICY")]
    overlap: Option<String>,
    /// What happens to a run whose executor is lost: `at_least_once` (the run is sent again; the default) or `at_most_once` (the outcome is unknown)
    #[arg(long, value_name = "DELIVERY")]
    delivery: Option<String>,
    /// What an executor does with a run while no server answers it: `continue` or `stop`
    #[arg(long, value_name = "WHAT")]
    on_silence: Option<String>,
    /// How long one attempt may take; by default without a limit
    #[arg(long, value_name = "DURATION")]
    timeout: Option<String>,
    /// How many times a failed run is tried again; by default 0
    #[arg(long, value_name = "N")]
    retries: Option<u32>,
    /// Report an incident if no run has succeeded by this time of day, HH:MM
    #[arg(long, value_name = "TIME")]
    success_by: Option<String>,
    /// The time zone of --success-by; by default that of --time-zone, else UTC
    #[arg(long = "success-by-time-zone", alias = "success-by-zone", value_name = "ZONE", requires = "success_by")]
    success_by_zone: Option<String>,
    /// Report an incident if no run has succeeded for this long
    #[arg(long, value_name = "DURATION")]
    no_success_for: Option<String>,
    /// Report an incident if a run takes longer than this
    #[arg(long, value_name = "DURATION")]
    longer_than: Option<String>,
    /// Report an incident if a run has not started this long after its planned instant
    #[arg(long, value_name = "DURATION")]
    late: Option<String>,
    /// Create the job with its schedule switched off
    #[arg(long)]
    disabled: bool,
}

impl DefinitionArgs {
    /// The document for the server.
    pub(crate) fn document(&self) -> Result<String, Failure> {
        match &self.file {
            Some(path) => input::read_json(path),
            None => Ok(self.document_of_flags()?.to_string()),
        }
    }

    fn document_of_flags(&self) -> Result<Value, Failure> {
        let mut document = Map::new();
        let texts = [
            ("name", &self.name),
            ("app", &self.app),
            ("handler", &self.handler),
            ("description", &self.description),
            ("route", &self.route),
            ("delivery", &self.delivery),
            ("on_silence", &self.on_silence),
            ("timeout", &self.timeout),
        ];
        for (key, text) in texts {
            if let Some(text) = text {
                document.insert(key.to_owned(), json!(text));
            }
        }
        if let Some(schedule) = self.schedule() {
            document.insert("schedule".to_owned(), schedule);
        }
        if let Some(params) = &self.params {
            document.insert("params".to_owned(), input::parse_json_flag("--params", params)?);
        }
        match self.overrides.as_slice() {
            [] => {}
            [override_text] if !override_text.starts_with('/') => {
                drop(document.insert("overrides".to_owned(), json!(override_text)))
            }
            pointers => drop(document.insert("overrides".to_owned(), json!(pointers))),
        }
        if let Some(policy) = &self.overlap {
            document.insert("overlap".to_owned(), json!({ "policy": policy }));
        }
        if let Some(max) = self.retries {
            document.insert("retry".to_owned(), json!({ "max": max }));
        }
        if let Some(expect) = self.expectations() {
            document.insert("expect".to_owned(), expect);
        }
        if self.disabled {
            document.insert("enabled".to_owned(), json!(false));
        }
        Ok(Value::Object(document))
    }

    fn expectations(&self) -> Option<Value> {
        let mut expect = Map::new();
        if let Some(time) = &self.success_by {
            let success_by = match &self.success_by_zone {
                Some(zone) => json!({ "time": time, "zone": zone }),
                None => json!({ "time": time }),
            };
            expect.insert("success_by".to_owned(), success_by);
        }
        let lengths =
            [("no_success_for", &self.no_success_for), ("longer_than", &self.longer_than), ("late", &self.late)];
        for (key, length) in lengths {
            if let Some(length) = length {
                expect.insert(key.to_owned(), json!(length));
            }
        }
        (!expect.is_empty()).then_some(Value::Object(expect))
    }

    fn schedule(&self) -> Option<Value> {
        match (&self.cron, &self.every, &self.at) {
            (Some(cron), _, _) => Some(match &self.tz {
                Some(zone) => json!({ "cron": cron, "time_zone": zone }),
                None => json!({ "cron": cron }),
            }),
            (None, Some(every), _) => Some(json!({ "every": every })),
            (None, None, Some(at)) => Some(json!({ "at": at })),
            (None, None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Create {
        #[command(flatten)]
        definition: DefinitionArgs,
    }

    fn document(flags: &[&str]) -> Result<Value, clap::Error> {
        let args = ["create", "--name", "a", "--app", "b", "--handler", "c"].iter().chain(flags);
        Ok(Create::try_parse_from(args)?.definition.document_of_flags().unwrap())
    }

    #[test]
    fn flags_become_a_definition() {
        let made =
            document(&["--cron", "0 0 2 * * ?", "--time-zone", "Asia/Shanghai", "--params", "[1]", "--retries", "2"]);
        let expected = json!({
            "name": "a", "app": "b", "handler": "c", "params": [1], "retry": {"max": 2},
            "schedule": {"cron": "0 0 2 * * ?", "time_zone": "Asia/Shanghai"},
        });
        assert_eq!(made.unwrap(), expected);
        let made = document(&["--every", "5s", "--disabled", "--overlap", "allow"]).unwrap();
        let expected = json!({
            "name": "a", "app": "b", "handler": "c", "schedule": {"every": "5s"}, "enabled": false,
            "overlap": {"policy": "allow"},
        });
        assert_eq!(made, expected);
    }

    #[test]
    fn flags_that_contradict_are_refused() {
        for flags in [
            &["--cron", "x", "--every", "5s"][..],
            &["--time-zone", "UTC"],
            &["--every", "5s", "--time-zone", "UTC"],
            &["-f", "x"],
            &["--every", "5s", "--at", "x"],
        ] {
            assert!(document(flags).is_err(), "{flags:?}");
        }
    }
}
