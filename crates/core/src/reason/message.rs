//! Translates messages of runs into Chinese. Executors and servers write them to the ledger in English.
//!
//! Only what Rondel writes itself is translated. What a handler or a program wrote stays as it is, in quotation marks. Messages of reports,
//! whose numbers are [folded](crate::report::fold) into `#`, are translated too.

use std::time::Duration;

use super::words::{outcome, short_length};
use crate::status::RunStatus;
use crate::time::parse_duration;
use crate::words::Lang;

/// Translates a message into a language, as a clause of a sentence.
///
/// ```
/// use rondel_core::reason::message::translate;
/// use rondel_core::words::Lang;
///
/// assert_eq!(translate("timed out after 2s", Lang::En), "timed out after 2s");
/// assert_eq!(translate("timed out after 2s", Lang::Zh), "2 秒后超时");
/// assert_eq!(translate("exit code 3: disk full", Lang::Zh), "退出码 3：“disk full”");
/// assert_eq!(translate("no such customer", Lang::Zh), "“no such customer”");
/// ```
#[must_use]
pub fn translate(message: &str, lang: Lang) -> String {
    match lang {
        Lang::En => message.to_owned(),
        Lang::Zh => in_chinese(message).unwrap_or_else(|| quoted(message)),
    }
}

/// The message in Chinese if Rondel wrote the message or its beginning; `None` otherwise.
#[must_use]
pub fn in_chinese(message: &str) -> Option<String> {
    let mut main_clause = message;
    let mut clauses = Vec::new();
    while let Some((before, clause)) =
        main_clause.rsplit_once("; ").and_then(|(before, last)| Some((before, translate_clause(last)?)))
    {
        main_clause = before;
        clauses.push(clause);
    }
    let mut text = translate_fixed_message(main_clause)
        .or_else(|| translate_stop(main_clause))
        .or_else(|| translate_shards(main_clause))
        .or_else(|| translate_agent_error(main_clause))
        .or_else(|| translate_program_end(main_clause))?;
    for clause in clauses.iter().rev() {
        text.push('；');
        text.push_str(clause);
    }
    Some(text)
}

/// The part of a message after "timed out", in English and Chinese: ` after 2s`, `：时限为 2 秒`. A sentence that names the outcome adds only
/// this part, so as not to name it twice.
#[must_use]
pub fn text_after_timed_out(message: &str) -> Option<(String, String)> {
    let en = message.strip_prefix("timed out")?;
    let limit = length(en.strip_prefix(" after ")?.split("; ").next()?)?;
    let clauses = in_chinese(message)?.strip_prefix(&format!("{limit}后超时"))?.to_owned();
    Some((en.to_owned(), format!("：时限为 {limit}{clauses}")))
}

/// The Chinese clause for a run that failed because of one of its children, which the message names.
#[must_use]
pub fn failed_child_text(message: &str) -> Option<String> {
    let endings = [
        (" failed", RunStatus::Failed),
        (" timed out", RunStatus::TimedOut),
        (" was cancelled", RunStatus::Cancelled),
        (" has an unknown outcome", RunStatus::Unknown),
        (" was skipped", RunStatus::Skipped),
    ];
    let (job, status) = endings.iter().find_map(|(end, status)| Some((message.strip_suffix(end)?, *status)))?;
    let job = if job == "a child" { "下游任务".to_owned() } else { format!("下游任务 {job} ") };
    Some(format!("{job}{}", outcome(status, Lang::Zh)))
}

fn translate_fixed_message(message: &str) -> Option<String> {
    let text = match message {
        "cancelled" => "已取消",
        "stopped" => "已停止",
        // Executors of earlier versions write the second form.
        "stopped: the executor is shutting down" | "stopped: the executor goes away" => "已停止：执行器正在退出",
        "ended without an exit code" => "程序结束，没有退出码",
        "panicked" => "处理器 panic",
        "the handler was dropped" => "处理器被丢弃",
        "the working directory's name is not UTF-8" => "工作目录的名称不是 UTF-8",
        "the runtime went away" => "执行器的运行时已退出",
        "the pool of blocking handlers is closed" => "执行器的阻塞线程池已关闭",
        "the executor sent a result that this server does not know" => "执行器发来了本服务器不认识的结果",
        "the result of this run cannot be written to the database" => "这次运行的结果无法写入数据库",
        _ => return None,
    };
    Some(text.to_owned())
}

fn translate_stop(message: &str) -> Option<String> {
    if let Some(text) = message.strip_prefix("timed out after ").and_then(length) {
        return Some(format!("{text}后超时"));
    }
    if let Some(text) = message.strip_prefix("stopped: no server answered for ").and_then(length) {
        return Some(format!("已停止：{text}内没有服务器应答"));
    }
    if let Some(text) = message.strip_prefix("no answer within ").and_then(length) {
        return Some(format!("{text}内没有应答"));
    }
    if let Some(text) = message.strip_prefix("no connection within ").and_then(length) {
        return Some(format!("{text}内没有建立连接"));
    }
    if message == "cancelled by the server, because the run's timeout has passed" {
        return Some("运行超时，被服务器取消".to_owned());
    }
    let actor_text = message.strip_prefix("cancelled by ")?;
    Some(match actor_text.split_once(": ") {
        Some((actor_text, reason)) => format!("被 {actor_text} 取消：{}", quoted(reason)),
        None => format!("被 {actor_text} 取消"),
    })
}

/// Translates messages such as `2 of 4 shards failed`.
fn translate_shards(message: &str) -> Option<String> {
    let (count, text_after_count) = message.split_once(" of ")?;
    let (total, ending) = text_after_count.split_once(" shards ")?;
    let (count, total) = (number(count)?, number(total)?);
    let ending = match ending.split_once(" by ").map_or(ending, |(ending, _)| ending) {
        "failed" => "失败",
        "timed out" => "超时",
        "were cancelled" => "被取消",
        "have an unknown outcome" => "结果未知",
        "were skipped" => "被跳过",
        _ => return None,
    };
    Some(format!("{total} 个分片中有 {count} 个{ending}"))
}

/// Translates why the agent could not start a program or read an answer.
fn translate_agent_error(message: &str) -> Option<String> {
    if let Some(max) = message.strip_prefix("the answer is larger than ").and_then(|rest| rest.split_once(" bytes")) {
        return Some(format!("应答超过 {} 字节（max_body_bytes）", number(max.0)?));
    }
    if let Some((path, error)) =
        message.strip_prefix("cannot write the script to ").and_then(|rest| rest.split_once(": "))
    {
        return Some(format!("无法把脚本写入 {path}：{}", quoted(error)));
    }
    let (program, error) = message.strip_prefix("cannot start ")?.split_once(": ")?;
    let error_text = match error {
        "there is no such program" => "没有这个程序".to_owned(),
        "it is not a folder" => "它不是文件夹".to_owned(),
        error => quoted(error),
    };
    Some(match program.split_once("\" in ") {
        Some((program, folder)) => format!("无法在 {folder} 中启动 {program}\"：{error_text}"),
        None => format!("无法启动 {program}：{error_text}"),
    })
}

/// Translates how a program or a request of the agent ended, with the last line that it wrote.
fn translate_program_end(message: &str) -> Option<String> {
    let (program_end, details) =
        message.split_once(": ").map_or((message, None), |(program_end, details)| (program_end, Some(details)));
    let end_text = if let Some(code) = program_end.strip_prefix("exit code ").and_then(number) {
        format!("退出码 {code}")
    } else if let Some(signal) = program_end.strip_prefix("killed by signal ").and_then(number) {
        format!("被信号 {signal} 终止")
    } else if program_end == "ended without an exit code" || program_end == "panicked" {
        translate_fixed_message(program_end)?
    } else if let Some((status, expected_text)) =
        program_end.strip_prefix("status ").and_then(|rest| rest.split_once(", expected "))
    {
        format!("HTTP 状态码 {}，应为 {}", number(status)?, expected_text.replace(" or ", " 或 "))
    } else {
        return None;
    };
    Some(details.map_or_else(|| end_text.clone(), |details| format!("{end_text}：{}", quoted(details))))
}

/// Translates a clause that may be appended to a message after `; `.
fn translate_clause(text: &str) -> Option<String> {
    if text == "the handler does not yield and cannot be aborted: it may still be at work" {
        return Some("处理器不让出线程，无法中止，可能仍在执行".to_owned());
    }
    if text == "the blocking handler does not return and cannot be aborted: it may still be at work" {
        return Some("阻塞处理器没有返回，无法中止，可能仍在执行".to_owned());
    }
    // Executors of earlier versions write the second form.
    let beginnings = ["aborted because it did not stop within ", "aborted, for it did not stop within "];
    if let Some(grace) = beginnings.into_iter().find_map(|start| text.strip_prefix(start)).and_then(length) {
        return Some(format!("{grace}内没有停止，已强行中止"));
    }
    let executor = text.strip_prefix("executor ")?.strip_suffix(" did not stop it")?;
    Some(format!("执行器 {executor} 没有停止它"))
}

fn length(text: &str) -> Option<String> {
    let exact_length = parse_duration(text).ok().map(|length: Duration| short_length(length, Lang::Zh));
    exact_length.or_else(|| folded_length(text))
}

/// A length in a folded message, such as `#m #s`.
fn folded_length(text: &str) -> Option<String> {
    let part_text = |part: &str| match part.strip_prefix('#')? {
        "ms" => Some("# 毫秒"),
        "s" => Some("# 秒"),
        "m" => Some("# 分钟"),
        "h" => Some("# 小时"),
        "d" => Some("# 天"),
        _ => None,
    };
    let parts: Option<Vec<&str>> = text.split(' ').map(part_text).collect();
    parts.map(|parts| parts.join(" "))
}

/// The text of a number, also in a folded message.
fn number(text: &str) -> Option<&str> {
    let is_folded = text.strip_prefix('-').unwrap_or(text) == "#";
    (is_folded || text.parse::<i64>().is_ok()).then_some(text)
}

fn quoted(text: &str) -> String {
    format!("“{text}”")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fold;

    #[test]
    fn messages_of_rondel_are_translated() {
        for (message, zh) in [
            ("timed out after 1m 30s", "1 分钟 30 秒后超时"),
            ("timed out after 2s; aborted because it did not stop within 5s", "2 秒后超时；5 秒内没有停止，已强行中止"),
            ("timed out after 2s; aborted, for it did not stop within 5s", "2 秒后超时；5 秒内没有停止，已强行中止"),
            ("timed out after 2s; executor w1 did not stop it", "2 秒后超时；执行器 w1 没有停止它"),
            (
                "stopped: no server answered for 15s; the handler does not yield and cannot be aborted: it may still be at work",
                "已停止：15 秒内没有服务器应答；处理器不让出线程，无法中止，可能仍在执行",
            ),
            (
                "timed out after 2s; the blocking handler does not return and cannot be aborted: it may still be at work",
                "2 秒后超时；阻塞处理器没有返回，无法中止，可能仍在执行",
            ),
            ("stopped: the executor is shutting down", "已停止：执行器正在退出"),
            ("stopped: the executor goes away", "已停止：执行器正在退出"),
            ("cancelled by li: the disk is full", "被 li 取消：“the disk is full”"),
            ("cancelled by the server, because the run's timeout has passed", "运行超时，被服务器取消"),
            (
                "cannot write the script to /tmp/r/script.sh: No space left on device (os error 28)",
                "无法把脚本写入 /tmp/r/script.sh：“No space left on device (os error 28)”",
            ),
            ("2 of 4 shards failed", "4 个分片中有 2 个失败"),
            ("4 of 4 shards were cancelled by li", "4 个分片中有 4 个被取消"),
            ("exit code 3", "退出码 3"),
            ("killed by signal 9: out of memory", "被信号 9 终止：“out of memory”"),
            ("cannot start \"backup\": there is no such program", "无法启动 \"backup\"：没有这个程序"),
            ("cannot start \"sh\" in /srv/x: it is not a folder", "无法在 /srv/x 中启动 \"sh\"：它不是文件夹"),
            ("the answer is larger than 65536 bytes (max_body_bytes)", "应答超过 65536 字节（max_body_bytes）"),
            ("panicked: index 3", "处理器 panic：“index 3”"),
            ("status 500, expected 200 or 204", "HTTP 状态码 500，应为 200 或 204"),
            ("no answer within 30s", "30 秒内没有应答"),
            ("no connection within 10s", "10 秒内没有建立连接"),
        ] {
            assert_eq!(in_chinese(message).as_deref(), Some(zh), "{message}");
        }
        assert_eq!(failed_child_text("report.send timed out").as_deref(), Some("下游任务 report.send 超时"));
    }

    #[test]
    fn messages_of_reports_are_translated() {
        for (message, zh) in [
            ("timed out after 90s", "# 秒后超时"),
            (
                "timed out after 1m 30s; aborted because it did not stop within 5s",
                "# 分钟 # 秒后超时；# 秒内没有停止，已强行中止",
            ),
            ("stopped: no server answered for 15s", "已停止：# 秒内没有服务器应答"),
            ("2 of 4 shards failed", "# 个分片中有 # 个失败"),
            ("exit code 3: row 7 is wrong", "退出码 #：“row # is wrong”"),
            ("killed by signal 9", "被信号 # 终止"),
            ("status 500, expected 200", "HTTP 状态码 #，应为 #"),
        ] {
            assert_eq!(in_chinese(&fold(message)).as_deref(), Some(zh), "{message}");
        }
        assert_eq!(in_chinese("timed out after #"), None);
    }

    #[test]
    fn other_messages_are_not_translated() {
        for message in ["upload failed", "timed out after lunch", "2 of them failed", "exit code three", "", "a; b"] {
            assert_eq!(in_chinese(message), None, "{message}");
            assert_eq!(translate(message, Lang::Zh), format!("“{message}”"));
        }
        assert_eq!(text_after_timed_out("timed out after lunch"), None);
        assert_eq!(text_after_timed_out("2 of 4 shards timed out"), None);
        let stopped = text_after_timed_out("timed out after 2s; executor w1 did not stop it");
        let (en, zh) = (" after 2s; executor w1 did not stop it", "：时限为 2 秒；执行器 w1 没有停止它");
        assert_eq!(stopped, Some((en.to_owned(), zh.to_owned())));
    }
}
