//! The language of sentences.

use std::ffi::OsString;

use clap::{Args, ValueEnum};
use rondel_core::words::Lang;

/// The flag for the language.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct LangArgs {
    /// The language of sentences; by default that of the environment's locale
    #[arg(long, value_enum, value_name = "LANG")]
    lang: Option<LangChoice>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LangChoice {
    /// English
    En,
    /// Chinese
    Zh,
}

impl LangArgs {
    /// The chosen language, or the language of the environment's locale.
    pub(crate) fn lang(self) -> Lang {
        match self.lang {
            Some(LangChoice::En) => Lang::En,
            Some(LangChoice::Zh) => Lang::Zh,
            None => lang_of_locale(["LC_ALL", "LC_MESSAGES", "LANG"].map(std::env::var_os)),
        }
    }
}

/// The language of the first of these variables that is not empty, as in POSIX: Chinese for `zh`, else English.
fn lang_of_locale(variables: [Option<OsString>; 3]) -> Lang {
    let locale = variables.into_iter().flatten().find(|value| !value.is_empty()).unwrap_or_default();
    if locale.to_string_lossy().starts_with("zh") { Lang::Zh } else { Lang::En }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_decides() {
        let of =
            |all: &str, messages: &str, lang: &str| lang_of_locale([all, messages, lang].map(|text| Some(text.into())));
        assert_eq!(of("", "", "zh_CN.UTF-8"), Lang::Zh);
        assert_eq!(of("", "de_DE", "zh_CN.UTF-8"), Lang::En);
        assert_eq!(of("zh_TW", "de_DE", "C"), Lang::Zh);
        assert_eq!(lang_of_locale([None, None, None]), Lang::En);
    }
}
