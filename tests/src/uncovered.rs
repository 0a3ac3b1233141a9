//! What tests in this environment leave out.

use crate::{databases, languages, settings};

/// A sentence for each kind of test that is left out.
pub fn uncovered() -> Vec<String> {
    let fuzzer = "made-up calls of the API, as RONDEL_TEST_SCHEMATHESIS is not set".to_owned();
    let fuzzer = settings::variable("RONDEL_TEST_SCHEMATHESIS").is_none().then_some(fuzzer);
    let java = "XXL-JOB's executors in Java, as RONDEL_TEST_XXL_JAVA is not set: tests/java/build needs Java and Maven"
        .to_owned();
    let java = settings::variable("RONDEL_TEST_XXL_JAVA").is_none().then_some(java);
    databases::uncovered().chain(languages::uncovered()).chain(fuzzer).chain(java).collect()
}
