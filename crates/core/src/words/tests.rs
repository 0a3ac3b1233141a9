use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::spec::CalendarRule;

/// Each expression with its sentences.
const SENTENCES: &[(&str, &str, &str)] = &[
    ("* * * * * ?", "every second", "每秒"),
    ("0/10 * * * * ?", "every 10 seconds", "每10秒"),
    ("5/10 * * * * ?", "every 10 seconds from second 5", "从第5秒起每10秒"),
    ("0/7 * * * * ?", "every 7 seconds from second 0 to 56 of each minute", "每分钟第0秒至第56秒每7秒"),
    ("5,10,20-30 * * * * ?", "at seconds 5, 10 and 20 to 30 of each minute", "每分钟的第5、10和20至30秒"),
    ("50-10 * * * * ?", "at seconds 0 to 10 and 50 to 59 of each minute", "每分钟的第0至10和50至59秒"),
    ("0 * * * * ?", "every minute", "每分钟"),
    ("30 * * * * ?", "every minute at second 30", "每分钟的第30秒"),
    ("0 0/5 * * * ?", "every 5 minutes", "每5分钟"),
    ("0 */5 * * * ?", "every 5 minutes", "每5分钟"),
    ("0 2/5 * * * ?", "every 5 minutes from minute 2", "从第2分起每5分钟"),
    ("30 0/5 * * * ?", "every 5 minutes at second 30", "每5分钟的第30秒"),
    ("0 0/7 * * * ?", "every 7 minutes from minute 0 to 56 of each hour", "每小时第0分至第56分每7分钟"),
    ("0 10-50/2 * * * ?", "every 2 minutes from minute 10 to 50 of each hour", "每小时第10分至第50分每2分钟"),
    ("0 1,2,10-20 * * * ?", "at minutes 1, 2 and 10 to 20 of each hour", "每小时的第1、2和10至20分"),
    ("0 15 * * * ?", "at minute 15 of each hour", "每小时的第15分"),
    ("* 5 * * * ?", "every second, in minute 5 of each hour", "每小时的第5分内，每秒"),
    ("0/10 0-4 * * * ?", "every 10 seconds, in minutes 0 to 4 of each hour", "每小时的第0至4分内，每10秒"),
    (
        "* 0/15 * * * ?",
        "every second, in every 15th minute from 0 to 45 of each hour",
        "每小时第0分至第45分每隔15分的那一分钟内，每秒",
    ),
    ("0 0 * * * ?", "every hour", "每小时"),
    ("0 0 0/2 * * ?", "every 2 hours", "每2小时"),
    ("0 15 1/3 * * ?", "every 3 hours from 01:15", "从01:15起每3小时"),
    ("0 0 9-17 * * ?", "every hour from 09:00 to 17:00", "09:00至17:00 每小时"),
    ("0 0 22-4 * * ?", "every hour from 22:00 to 04:00", "22:00至04:00 每小时"),
    ("0 0 1-19/2 * * ?", "every 2 hours from 01:00 to 19:00", "01:00至19:00 每2小时"),
    ("0 0 0/6 * * ?", "at 00:00, 06:00, 12:00 and 18:00 every day", "每天 00:00、06:00、12:00和18:00"),
    ("0 0/5 9-17 * * ?", "every 5 minutes from 09:00 to 17:59", "09:00至17:59 每5分钟"),
    ("0 0/5 14 * * ?", "every 5 minutes from 14:00 to 14:59", "14:00至14:59 每5分钟"),
    ("0 * 1,3-5 * * ?", "every minute, in the hours 1 and 3 to 5", "1和3至5点内，每分钟"),
    ("0 * 0/2 * * ?", "every minute, in every 2nd hour from 0 to 22", "0点至22点每隔2小时的那一小时内，每分钟"),
    ("0 30 2 * * ?", "at 02:30 every day", "每天 02:30"),
    ("15 30 2 * * ?", "at 02:30:15 every day", "每天 02:30:15"),
    ("0 0,30 9,18 * * ?", "at 09:00, 09:30, 18:00 and 18:30 every day", "每天 09:00、09:30、18:00和18:30"),
    ("0 0 9 ? * MON-FRI", "at 09:00, Monday to Friday", "周一至周五 09:00"),
    ("0 0 9 ? * 2,3,4,5,6", "at 09:00, Monday to Friday", "周一至周五 09:00"),
    ("0 0 9 ? * 2", "at 09:00 every Monday", "每周一 09:00"),
    ("0 0 9 ? * SAT,SUN", "at 09:00 on Saturday and Sunday", "每周六和周日 09:00"),
    ("0 0 9 ? * 2/2", "at 09:00 on Monday, Wednesday and Friday", "每周一、周三和周五 09:00"),
    ("0 0 9 ? * FRI-MON", "at 09:00, Friday to Monday", "周五至周一 09:00"),
    ("0 0/10 * ? * MON", "every 10 minutes, every Monday", "每周一 每10分钟"),
    (
        "0 0/10 8-18 ? * MON-FRI",
        "every 10 minutes from 08:00 to 18:59, Monday to Friday",
        "周一至周五 08:00至18:59 每10分钟",
    ),
    ("0 0 9 ? * L", "at 09:00 every Saturday", "每周六 09:00"),
    ("0 0 9 15 * ?", "at 09:00 on day 15 of each month", "每月15日 09:00"),
    ("0 0 9 31 * ?", "at 09:00 on day 31 of each month that has one", "每月31日 09:00"),
    ("0 0 9 1,15 * ?", "at 09:00 on days 1 and 15 of each month", "每月1日和15日 09:00"),
    ("0 0 9 28-3 * ?", "at 09:00 on days 1 to 3 and 28 to 31 of each month", "每月1日至3日和28日至31日 09:00"),
    ("0 0 9 1/5 * ?", "at 09:00 on every 5th day from 1 to 31 of each month", "每月1日至31日每5天 09:00"),
    ("0 0 9 L * ?", "at 09:00 on the last day of each month", "每月最后一天 09:00"),
    ("0 0 9 L-3 * ?", "at 09:00 3 days before the last day of each month", "每月倒数第4天 09:00"),
    ("0 0 9 L-1 * ?", "at 09:00 1 day before the last day of each month", "每月倒数第2天 09:00"),
    ("0 0 9 LW * ?", "at 09:00 on the last weekday of each month", "每月最后一个工作日 09:00"),
    (
        "0 0 9 L-3W * ?",
        "at 09:00 on the weekday nearest to 3 days before the last day of each month",
        "每月离倒数第4天最近的工作日 09:00",
    ),
    ("0 0 9 15W * ?", "at 09:00 on the weekday nearest to day 15 of each month", "每月离15日最近的工作日 09:00"),
    ("0 0 9 ? * 6L", "at 09:00 on the last Friday of each month", "每月最后一个周五 09:00"),
    ("0 0 9 ? * FRI#2", "at 09:00 on the second Friday of each month", "每月第2个周五 09:00"),
    ("0 0 9 ? * 1#5", "at 09:00 on the fifth Sunday of each month, where there is one", "每月第5个周日 09:00"),
    ("0 0 9 1 1 ?", "at 09:00 on 1 January", "1月1日 09:00"),
    ("0 0 9 1 1,7 ?", "at 09:00 on day 1 of January and July", "1月和7月的1日 09:00"),
    ("0 0 9 * 11-2 ?", "at 09:00 every day in November to February", "11月至2月每天 09:00"),
    ("0 0 9 1 1/3 ?", "at 09:00 on day 1 of January, April, July and October", "1月、4月、7月和10月的1日 09:00"),
    ("0 0 9 ? 6 MON", "at 09:00 every Monday in June", "6月的每周一 09:00"),
    ("0 0 9 LW 3,6 ?", "at 09:00 on the last weekday of March and June", "3月和6月的最后一个工作日 09:00"),
    ("0 0/5 * * 12 ?", "every 5 minutes, in December", "12月 每5分钟"),
    ("0 0 9 1 1 ? 2027", "at 09:00 on 1 January, in 2027", "2027年，1月1日 09:00"),
    ("0 0 9 * * ? 2026-2030", "at 09:00 every day, in 2026 to 2030", "2026年至2030年，每天 09:00"),
    ("0 0 9 * * ? 2026,2028", "at 09:00 every day, in 2026 and 2028", "2026年和2028年，每天 09:00"),
    ("0 0 9 * * ? 2030-2199", "at 09:00 every day, from 2030 on", "自2030年起，每天 09:00"),
    ("0 0 9 29 2 ? 2028/4", "at 09:00 on 29 February, every 4 years from 2028 on", "自2028年起每4年，2月29日 09:00"),
    ("0 0 0 31 2 ?", "at 00:00 on 31 February", "2月31日 00:00"),
    ("*/5 * * * *", "every 5 minutes", "每5分钟"),
    ("0 9 * * 1-5", "at 09:00, Monday to Friday", "周一至周五 09:00"),
    ("0 9 * * 0", "at 09:00 every Sunday", "每周日 09:00"),
    ("0 9 * * 7", "at 09:00 every Sunday", "每周日 09:00"),
    ("0 9 13 * 5", "at 09:00 on day 13 of each month and also on Friday", "每月13日，以及每周五 09:00"),
    (
        "0 9 */2 * 1",
        "at 09:00 on every 2nd day from 1 to 31 of each month where it is Monday",
        "每月1日至31日每2天中的周一 09:00",
    ),
    ("0 9 1 * *", "at 09:00 on day 1 of each month", "每月1日 09:00"),
    ("@hourly", "every hour", "每小时"),
    ("@daily", "at 00:00 every day", "每天 00:00"),
    ("@weekly", "at 00:00 every Sunday", "每周日 00:00"),
    ("@monthly", "at 00:00 on day 1 of each month", "每月1日 00:00"),
    ("@yearly", "at 00:00 on 1 January", "1月1日 00:00"),
];

#[test]
fn expressions_have_sentences() {
    let mut wrong = Vec::new();
    for (text, en, zh) in SENTENCES {
        let expression = CronExpr::parse(text).unwrap();
        let found = [Lang::En, Lang::Zh].map(|lang| cron(&expression, lang));
        if found != [*en, *zh] {
            wrong.push(format!("{text}\n  {en}\n  {}\n  {zh}\n  {}", found[0], found[1]));
        }
    }
    assert!(SENTENCES.len() >= 60 && wrong.is_empty(), "{}", wrong.join("\n"));
}

#[track_caller]
fn check_schedule(spec: Value, en: &str, zh: &str) {
    let spec = serde_json::from_value(spec).unwrap();
    let found = [Lang::En, Lang::Zh].map(|lang| schedule_spec(&spec, lang).unwrap());
    assert_eq!(found, [en, zh]);
}

#[test]
fn sentences_describe_schedules_completely() {
    check_schedule(json!({"every": "1m"}), "every minute", "每分钟");
    check_schedule(json!({"every": "90m"}), "every 1 hour 30 minutes", "每1小时30分钟");
    check_schedule(json!({"delay": "20s"}), "20 seconds after the end of the run before", "上一次执行结束后20秒");
    check_schedule(
        json!({"at": "2026-11-20T18:30:00Z", "time_zone": "Asia/Shanghai"}),
        "once at 2026-11-21 02:30 Asia/Shanghai",
        "单次：2026-11-21 02:30 Asia/Shanghai",
    );
    check_schedule(json!({"after": ["a"]}), "after a has succeeded", "在 a 成功之后");
    check_schedule(
        json!({"after": ["a", "b", "c"], "on": "either"}),
        "after a, b and c have ended",
        "在 a、b和c 都结束之后",
    );
    check_schedule(
        json!({"every": "5m", "start_at": "2026-11-20T00:00:00Z", "jitter": {"max": "30s"}}),
        "every 5 minutes; counted from 2026-11-20 00:00 UTC; runs start up to 30 seconds later, always by the same length",
        "每5分钟；从 2026-11-20 00:00 UTC 起计；推迟至多30秒开始，每次推迟相同",
    );
    check_schedule(
        json!({
            "cron": "0 30 2 * * ?", "time_zone": "Europe/Berlin", "dst": {"gap": "skip", "overlap": "both"},
            "start_at": "2026-11-20T00:00:00Z", "end_at": "2027-11-20T00:00:00Z", "jitter": {"max": "1m30s", "by": "fire"},
        }),
        "at 02:30 every day (Europe/Berlin); not before 2026-11-20 01:00 Europe/Berlin; not after 2027-11-20 01:00 \
         Europe/Berlin; times that the clock skips do not fire; times that the clock shows twice fire both times; runs start \
         up to 1 minute 30 seconds later, each by a length of its own",
        "每天 02:30（Europe/Berlin）；不早于 2026-11-20 01:00 Europe/Berlin；不晚于 2027-11-20 01:00 \
         Europe/Berlin；被跳过的时刻不触发；重复出现的时刻两次都触发；推迟至多1分钟30秒开始，每次推迟不同",
    );
}

#[test]
fn a_schedule_that_is_not_valid_has_no_sentence() {
    let spec = serde_json::from_value(json!({"cron": "99 * * * * ?"})).unwrap();
    assert_eq!(schedule_spec(&spec, Lang::En), None);
}

#[test]
fn calendars_and_dialects_are_described() {
    assert_eq!(calendar("cn", CalendarRule::Only, Lang::En), "only in the calendar cn");
    assert_eq!(calendar("cn", CalendarRule::Next, Lang::Zh), "日历 cn 之外的日子顺延到之内的下一天");
    let read = |text: &str, lang| dialect(CronExpr::parse(text).unwrap().dialect(), lang);
    assert!(read("*/5 * * * *", Lang::En).contains("Unix cron with 5 fields"));
    assert!(read("0 */5 * * * ?", Lang::Zh).contains("6 个字段的 Quartz cron"));
}

fn field(low: u32, high: u32) -> impl Strategy<Value = String> {
    let value = low..=high;
    let item = prop_oneof![
        Just("*".to_owned()),
        value.clone().prop_map(|value| value.to_string()),
        (value.clone(), 2u32..9).prop_map(|(from, step)| format!("{from}/{step}")),
        (value.clone(), value).prop_map(|(from, to)| format!("{from}-{to}")),
    ];
    prop::collection::vec(item, 1..3).prop_map(|items| items.join(","))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Two expressions with the same sentence fire at the same times: nothing is left out.
    #[test]
    fn a_sentence_leaves_nothing_out(
        (second, minute, hour) in (field(0, 59), field(0, 59), field(0, 23)),
        (day, month) in (field(1, 31), field(1, 12)),
        other in (field(0, 59), field(0, 59), field(0, 23), field(1, 31), field(1, 12)),
        which in 0usize..5,
    ) {
        let one = [second, minute, hour, day, month];
        let mut two = one.clone();
        two[which] = [other.0, other.1, other.2, other.3, other.4][which].clone();
        let parse = |fields: &[String; 5]| CronExpr::parse(&format!("{} ?", fields.join(" "))).unwrap();
        let (one, two) = (parse(&one), parse(&two));
        for lang in [Lang::En, Lang::Zh] {
            let (first, second) = (cron(&one, lang), cron(&two, lang));
            prop_assert!(!first.contains("  ") && !first.ends_with(' '), "{first:?}");
            prop_assert_eq!(one.fields() == two.fields(), first == second, "{} {}", one, two);
        }
    }
}

#[test]
fn one_is_singular() {
    use crate::words::counted;
    assert_eq!([0_u32, 1, 2].map(|count| counted(count, "job")), ["0 jobs", "1 job", "2 jobs"]);
}

#[test]
fn an_instant_outside_the_known_years_has_none() {
    use crate::cron::Tz;
    use crate::words::instants;
    let count = |text: &str| instants(Tz::Asia__Shanghai, text).map(|found| found.len());
    assert_eq!(count("1970-01-01T08:00"), Some(1));
    assert_eq!(count("1970-01-01T07:59"), None, "before the first instant");
    assert_eq!(count("2199-12-31T23:59"), Some(1));
    assert_eq!(count("2200-01-01T00:00"), None);
    let west = |text: &str| instants(Tz::America__New_York, text).map(|found| found.len());
    assert_eq!((west("1969-12-31T20:00"), west("2199-12-31T23:59")), (None, None));
}
