//! Layers of settings. A setting is declared once: its key, help, flag, variable, and its default or an example.

use clap::Args;
use serde::Serialize;

/// One layer of a section's settings: flags and environment, the file, or the defaults. Any setting may be missing.
pub(super) trait Layer: Args + Default + Serialize {
    /// The effective settings: settings with a default always have a value.
    type Values;

    /// The name of the section in the config file.
    const SECTION: &'static str;
    /// Keys without a default, each with an example of a value.
    const EXAMPLES: &'static [(&'static str, &'static str)];

    /// The lowest layer: the defaults.
    fn defaults() -> Self;

    /// These settings; each one that is not set gets the value of the lower layer.
    fn with_fallback(self, lower_layer: Self) -> Self;

    /// The effective settings: each setting that is not set gets its default, if it has one.
    fn values(self) -> Self::Values;

    /// Completes these settings, which come from flags and the environment, with the file's settings and then with the defaults.
    fn with_file_and_defaults(self, file: Option<Self>) -> Self {
        self.with_fallback(file.unwrap_or_default()).with_fallback(Self::defaults())
    }
}

/// Defines a layer and its values: `key: Type = default;`, or `key: Type, example "…";` if there is no default.
macro_rules! settings {
    (
        $(#[$about:meta])*
        $section:literal, $layer:ident => $values:ident {
            $($(#[$meta:meta])* $key:ident: $type:ty $(= $default:expr)? $(, example $example:literal)?;)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, clap::Args, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub(crate) struct $layer {
            $($(#[$meta])* #[serde(skip_serializing_if = "Option::is_none")] pub(crate) $key: Option<$type>,)+
        }

        /// The effective settings.
        #[derive(Clone, Debug)]
        pub(crate) struct $values {
            $(pub(crate) $key: settings!(@type $type $(, $default)?),)+
        }

        impl crate::config::layer::Layer for $layer {
            type Values = $values;

            const SECTION: &'static str = $section;
            const EXAMPLES: &'static [(&'static str, &'static str)] = &[$($((stringify!($key), $example),)?)+];

            fn defaults() -> Self {
                Self { $($key: settings!(@default $($default)?),)+ }
            }

            fn with_fallback(self, lower_layer: Self) -> Self {
                Self { $($key: self.$key.or(lower_layer.$key),)+ }
            }

            fn values(self) -> $values {
                $values { $($key: settings!(@value self.$key $(, $default)?),)+ }
            }
        }
    };
    (@type $type:ty) => { Option<$type> };
    (@type $type:ty, $default:expr) => { $type };
    (@default) => { None };
    (@default $default:expr) => { Some($default) };
    (@value $given:expr) => { $given };
    (@value $given:expr, $default:expr) => { $given.unwrap_or_else(|| $default) };
}

pub(super) use settings;
