//! The whole-system tests: the real binary, real databases, real processes. All of them are one test program, so that
//! it is linked only once.

mod agent;
mod alert_rules;
mod alert_scenarios;
mod audit;
mod bad_input;
mod broadcast;
mod calendars;
mod channels;
mod cluster;
mod compile_errors;
mod confined;
mod console;
mod crash;
mod dead_letters;
mod declared;
mod delays;
mod drain;
mod edits;
mod events;
mod fires;
mod flood;
mod fuzz;
mod harness;
mod hello;
mod hostile;
mod import;
mod incidents;
mod journal;
mod maintenance;
mod migrating;
mod misfire;
mod odd_texts;
mod oidc;
mod overlap;
mod overrides;
mod params;
mod parents;
mod proof;
mod purge;
mod regression;
mod reports;
mod routers;
mod scripts;
mod secured;
mod shadow;
mod siege;
mod switches;
mod telemetry;
mod tidy;
mod unruly;
mod verdicts;
mod webhook;
mod why;
mod why_around;
mod witness;
mod xxl;

/// Runs a test on each database: `on_each_database!(test)` makes three tests of `async fn test(db: ScratchDb)`.
macro_rules! on_each_database {
    ($test:ident) => {
        mod $test {
            use rondel_tests::Backend;

            async fn on(backend: Backend) {
                if let Some(db) = rondel_tests::scratch(backend).await {
                    super::$test(db).await;
                }
            }

            #[tokio::test]
            async fn sqlite() {
                on(Backend::Sqlite).await;
            }

            #[tokio::test]
            async fn postgres() {
                on(Backend::Postgres).await;
            }

            #[tokio::test]
            async fn mysql() {
                on(Backend::Mysql).await;
            }
        }
    };
}
pub(crate) use on_each_database;
