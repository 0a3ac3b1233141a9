//! Parses query strings. Each endpoint declares the parameters that it reads; a request with any other parameter is refused with its
//! name. The OpenAPI document describes the same parameters.

use std::str::FromStr;

use axum::extract::Query;
use http::Uri;

use crate::parameter::Parameter;
use crate::problem::{Code, Complaint, Problem};

/// Reads a query, and records which parameters the endpoint reads, so that [`Reader::finish`] can refuse all others by name.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pairs: Vec<(String, String)>,
    declared: Vec<Parameter>,
    errors: Vec<Complaint>,
}

/// A query in the form that an endpoint needs. The reader collects the errors in it.
pub(crate) trait FromQuery: Sized {
    fn from_query(reader: &mut Reader) -> Self;
}

impl FromQuery for () {
    fn from_query(_reader: &mut Reader) -> Self {}
}

impl Reader {
    pub(crate) fn new(uri: &Uri) -> Self {
        let (pairs, errors) = match Query::<Vec<(String, String)>>::try_from_uri(uri) {
            Ok(Query(pairs)) => (pairs, Vec::new()),
            Err(error) => (Vec::new(), vec![Complaint::query("", "invalid_value", error.body_text())]),
        };
        Self { pairs, declared: Vec::new(), errors }
    }

    /// The parameters that `Q` reads.
    pub(crate) fn parameters_of<Q: FromQuery>() -> Vec<Parameter> {
        let mut reader = Self::default();
        Q::from_query(&mut reader);
        reader.declared
    }

    /// Whether the query has a parameter with this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.pairs.iter().any(|(key, _)| key == name)
    }

    /// The value of a parameter that may be given at most once.
    pub(crate) fn single(&mut self, parameter: impl Into<Parameter>) -> Option<String> {
        let parameter = parameter.into();
        let name = parameter.name;
        self.declared.push(parameter);
        let mut values = self.pairs.iter().filter(|(key, _)| key == name).map(|(_, value)| value);
        let first_value = values.next().cloned();
        if values.next().is_some() {
            self.errors.push(Complaint::query(name, "repeated_parameter", "is given more than once"));
        }
        first_value
    }

    /// The value of a parameter that may be given at most once, parsed by `parse`. The error of `parse` is the message for the caller.
    pub(crate) fn parsed<T>(
        &mut self,
        parameter: impl Into<Parameter>,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let parameter = parameter.into();
        let name = parameter.name;
        let text = self.single(parameter)?;
        parse(&text).map_err(|message| self.errors.push(Complaint::query(name, "invalid_value", message))).ok()
    }

    /// Words in repeated parameters or separated by commas, sorted and without duplicates.
    pub(crate) fn words<T: FromStr<Err = String> + Ord>(&mut self, parameter: Parameter) -> Vec<T> {
        let name = parameter.name;
        self.declared.push(parameter);
        let pairs = self.pairs.iter().filter(|(key, _)| key == name);
        let parsed_words: Vec<Result<T, String>> =
            pairs.flat_map(|(_, value)| value.split(',')).map(str::parse).collect();
        let mut valid_words = Vec::new();
        for word in parsed_words {
            match word {
                Ok(word) => valid_words.push(word),
                Err(message) => self.errors.push(Complaint::query(name, "invalid_value", message)),
            }
        }
        valid_words.sort();
        valid_words.dedup();
        valid_words
    }

    /// `limit`, from 1 to `limit_max`.
    pub(crate) fn limit(&mut self, limit_default: u32, limit_max: u32) -> u32 {
        let parse = |text: &str| match text.parse::<u32>() {
            Ok(limit) if (1..=limit_max).contains(&limit) => Ok(limit),
            _ => Err(format!("{text:?} is not a number from 1 to {limit_max}")),
        };
        self.parsed(
            Parameter::number("limit", 1..=limit_max)
                .with_default(limit_default)
                .about("Maximum number of items in the answer."),
            parse,
        )
        .unwrap_or(limit_default)
    }

    /// `true` or `false`; `false` if the parameter is not given.
    pub(crate) fn flag(&mut self, name: &'static str, about: &'static str) -> bool {
        self.parsed(Parameter::flag(name).about(about), |text| {
            text.parse().map_err(|_| format!("{text:?} is neither true nor false"))
        })
        .unwrap_or_default()
    }

    /// Refuses the query if a value was invalid, or if it has a parameter that the endpoint does not read.
    pub(crate) fn finish(mut self) -> Result<(), Problem> {
        let mut unknown_keys: Vec<&str> = self.pairs.iter().map(|(key, _)| key.as_str()).collect();
        let declared_names: Vec<&str> = self.declared.iter().map(|parameter| parameter.name).collect();
        unknown_keys.retain(|key| !declared_names.contains(key));
        unknown_keys.dedup();
        let declared_names = declared_names.join(", ");
        for key in unknown_keys {
            let message = format!("is not a parameter of this endpoint, which has {declared_names}");
            self.errors.push(Complaint::query(key, "unknown_parameter", message));
        }
        if self.errors.is_empty() { Ok(()) } else { Err(Problem::of_complaints(Code::InvalidQuery, self.errors)) }
    }
}

#[cfg(test)]
mod tests {
    use rondel_core::RunStatus;

    use super::*;

    fn reader(query: &str) -> Reader {
        Reader::new(&format!("/x?{query}").parse().unwrap())
    }

    #[test]
    fn words_come_repeated_or_with_commas() {
        let mut reader = reader("status=failed,running&status=failed");
        assert_eq!(reader.words::<RunStatus>(Parameter::text("status")), [RunStatus::Running, RunStatus::Failed]);
        assert!(reader.finish().is_ok());
    }

    #[test]
    fn wrong_parameters_are_refused() {
        for query in ["limit=0", "limit=201", "limit=-1", "limit=", "limit=1&limit=2", "other=1", "limit=1&x=%ff"] {
            let mut reader = reader(query);
            reader.limit(50, 200);
            assert!(reader.finish().is_err(), "{query}");
        }
    }
}
