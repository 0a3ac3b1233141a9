//! Texts in English and Chinese side by side.

use crate::maintenance::FiresInside;

/// A text in English and in Chinese.
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

/// What a maintenance window does to a fire.
pub(super) fn in_maintenance_window(at: &str, end: &str, fires: FiresInside) -> Bilingual {
    match fires {
        FiresInside::Skip => both(
            format!("It does not run: {at} is in a maintenance window, up to {end}."),
            format!("不会执行：{at} 处于维护窗口内（至 {end}）。"),
        ),
        FiresInside::Hold => both(
            format!(
                "It does not run at {at}: a maintenance window holds it back until {end}; the misfire policy decides then."
            ),
            format!("{at} 不会执行：维护窗口将其保留到 {end}，届时按错过策略处理。"),
        ),
    }
}
