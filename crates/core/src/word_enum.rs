//! Enums whose values have one word each in SQL, JSON and the console.

/// Defines an enum whose values have one word each, with its order, its JSON schema, `Display` and `FromStr`. The schema has the name of
/// the type, unless another name follows the type in parentheses, as in `RunEnd ("Over")`.
macro_rules! word_enum {
    ($(#[doc = $doc:literal])* $name:ident $(($schema:literal))? { $($(#[doc = $vdoc:literal])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[doc = $vdoc])* $variant),+ }

        impl $name {
            /// Every value, in the order of the definition.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Their words, in the same order.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word for this value in SQL, JSON and the console.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                [$($schema,)? stringify!($name)][0].into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $crate::schema::words(&[$($doc),*], &[$(($word, &[$($vdoc),*])),+])
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;
            fn from_str(word: &str) -> Result<Self, String> {
                Self::ALL.iter().copied().find(|value| value.as_str() == word).ok_or_else(|| {
                    let words: Vec<&str> = Self::ALL.iter().map(|value| value.as_str()).collect();
                    format!("{word:?} is none of {}", words.join(", "))
                })
            }
        }
    };
}
pub(crate) use word_enum;

/// Defines an enum whose values have one word each, with its order, `Display` and `FromStr`, but without a form in JSON.
///
/// ```
/// rondel_core::plain_word_enum! {
///     /// The state of a door.
///     pub Door {
///         /// It is closed.
///         Closed = "closed",
///         /// It is open.
///         Open = "open",
///     }
/// }
/// assert_eq!((Door::Open.as_str(), Door::from_word("ajar")), ("open", None));
/// assert_eq!("ajar".parse::<Door>().unwrap_err(), "\"ajar\" is none of closed, open");
/// ```
#[macro_export]
macro_rules! plain_word_enum {
    ($(#[$meta:meta])* $vis:vis $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        $vis enum $name { $($(#[$vmeta])* $variant),+ }

        impl $name {
            /// Every value, in the order of the definition.
            $vis const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// Their words, in the same order.
            $vis const WORDS: [&'static str; [$($word),+].len()] = [$($word),+];

            /// The word for this value.
            #[must_use]
            $vis const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// The value with this word.
            #[must_use]
            $vis fn from_word(word: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.as_str() == word)
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = String;
            fn from_str(word: &str) -> ::std::result::Result<Self, String> {
                Self::from_word(word).ok_or_else(|| format!("{word:?} is none of {}", Self::WORDS.join(", ")))
            }
        }
    };
}
