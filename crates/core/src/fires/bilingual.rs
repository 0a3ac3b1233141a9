//! The same words in English and Chinese.

/// English and Chinese.
pub(super) type Bilingual = (String, String);

pub(super) fn both(en: impl Into<String>, zh: impl Into<String>) -> Bilingual {
    (en.into(), zh.into())
}

pub(super) fn nothing() -> Bilingual {
    both("", "")
}

pub(super) fn executor_named(name: Option<&str>) -> Bilingual {
    let name = name.filter(|name| !name.is_empty());
    name.map_or_else(nothing, |name| both(format!(" on {name}"), format!("（执行器 {name}）")))
}
