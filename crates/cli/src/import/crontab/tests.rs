//! How the lines of a crontab are converted.

use super::*;

const SOURCE: CrontabSource<'_> = CrontabSource {
    app: "backups",
    zone: Some("Europe/Berlin"),
    executor: None,
    file: Some("/etc/crontab"),
    prefix: "",
    has_user: false,
};

fn job<'a>(result: &'a ImportResult, name: &str) -> &'a Value {
    let jobs = result.entries.iter().filter_map(|entry| entry.job.as_ref());
    jobs.into_iter().find(|job| job["name"] == name).unwrap_or_else(|| panic!("no {name} in {result:?}"))
}

#[test]
fn lines_become_jobs_that_mean_the_same() {
    let text = "# nightly\nSHELL=/bin/bash\nMAILTO=\"ops@example.com\"\nPATH = /usr/local/bin:/usr/bin\n\n\
        15 2 * * mon-fri  /usr/local/bin/backup.sh --full\n@daily cd /srv && ./report.py > /dev/null 2>&1\n\
        */5 * * * * /usr/bin/flock -n /tmp/x.lock /opt/sync.sh\n0 0 1 * * mail -s done ops%All is\\% well%bye\n";
    let result = read(text, &SOURCE).unwrap();
    let backup = job(&result, "backup.sh");
    assert_eq!(backup["params"]["argv"], json!(["/bin/bash", "-c", "/usr/local/bin/backup.sh --full"]));
    assert_eq!(backup["params"]["env"], json!({"PATH": "/usr/local/bin:/usr/bin"}));
    assert_eq!(backup["schedule"], json!({"cron": "15 2 * * mon-fri", "time_zone": "Europe/Berlin"}));
    assert_eq!((&backup["overlap"]["policy"], &backup["delivery"]), (&json!("allow"), &json!("at_most_once")));
    assert_eq!(job(&result, "report.py")["schedule"]["cron"], "@daily");
    assert!(job(&result, "sync.sh")["params"]["argv"][2].as_str().unwrap().contains("flock"));
    let mail = job(&result, "mail");
    assert_eq!(
        (&mail["params"]["argv"][2], &mail["params"]["stdin"]),
        (&json!("mail -s done ops"), &json!("All is% well\nbye\n"))
    );
    let report = result.text("x");
    for expected in ["mailed to ops@example.com", "/dev/null", "set overlap.policy to discard", "home folder"] {
        assert!(report.contains(expected), "{expected}: {report}");
    }
}

#[test]
fn a_system_crontab_names_users_and_zones_may_change_between_lines() {
    let text = "CRON_TZ=Asia/Shanghai\n17 *\t* * *\troot\tcd / && run-parts --report /etc/cron.hourly\nTZ=UTC\nCRON_TZ=Europe/Paris\n1 1 * * * www-data php /srv/x.php\n";
    let result = read(text, &CrontabSource { has_user: true, zone: None, executor: Some("web1"), ..SOURCE }).unwrap();
    let first = job(&result, "run-parts");
    assert_eq!(
        (&first["labels"]["cron-user"], &first["schedule"]["time_zone"]),
        (&json!("root"), &json!("Asia/Shanghai"))
    );
    assert_eq!(first["select"]["executors"], json!(["web1"]));
    assert_eq!(first["labels"], json!({"cron-user": "root", "cron-file": "/etc/crontab", "cron-host": "web1"}));
    let second = job(&result, "x.php");
    assert_eq!(
        (&second["schedule"]["time_zone"], &second["params"]["env"]),
        (&json!("Europe/Paris"), &json!({"TZ": "UTC"})),
        "TZ is for the command alone"
    );
    assert!(result.text("x").contains("line 3: TZ is the zone of the commands"), "{}", result.text("x"));
}

#[test]
fn lines_that_cannot_be_imported_are_reported_by_number() {
    let text = "@reboot /usr/bin/start\n61 * * * * x\n* * * * *\nnonsense\n1 2 3\n";
    let result = read(text, &SOURCE).unwrap();
    assert!(result.entries.iter().all(|entry| entry.job.is_none()), "{result:?}");
    let report = result.text("x");
    for expected in [
        "line 1): left out: @reboot",
        "minute at position 0: \"61\"",
        "line 3): left out: has no command",
        "line 4)",
        "line 5)",
    ] {
        assert!(report.contains(expected), "{expected}: {report}");
    }
    let unknown = read("1 1 * * * x", &CrontabSource { zone: None, ..SOURCE }).unwrap_err();
    assert!(unknown.contains("line 1") && unknown.contains("--time-zone"), "{unknown}");
}

#[test]
fn read_again_it_is_the_same() {
    let text = "1 1 * * * a\n2 2 * * * a\n";
    let first = read(text, &SOURCE).unwrap().yaml();
    assert_eq!(first, read(text, &SOURCE).unwrap().yaml());
    // Neither a comment nor a job between the two changes their names and definitions.
    let commented = read("# more\n1 1 * * * a\n3 3 * * * a\n2 2 * * * a\n", &SOURCE).unwrap();
    for job in read(text, &SOURCE).unwrap().entries.iter().filter_map(|entry| entry.job.as_ref()) {
        assert!(commented.entries.iter().any(|entry| entry.job.as_ref() == Some(job)), "{job} {}", commented.yaml());
    }
    let same = read("1 1 * * * a\n1 1 * * * a\n1 1 * * * a\n", &SOURCE).unwrap();
    assert_eq!(same.entries.iter().filter(|entry| entry.job.is_some()).count(), 3);
}

#[test]
fn a_changed_schedule_keeps_the_name_of_its_job() {
    let names = |text: &str| -> Vec<String> {
        read(text, &SOURCE).unwrap().entries.iter().map(|entry| entry.name().to_owned()).collect()
    };
    let before = names("1 1 * * * a --x\n2 2 * * * a --y\n3 3 * * * a --z%in\n");
    assert_eq!(before[0], "a");
    assert_eq!(names("4 4 * * * a --x\n5 5 * * * a --y\n@daily a --z%in\n"), before);
    // The same command twice: the schedule distinguishes them.
    let twice = names("1 1 * * * a\n2 2 * * * a\n3 3 * * * a\n");
    assert_eq!(names("1 1 * * * a\n2 2 * * * a\n0 0 1 1 0 b\n3 3 * * * a\n")[3], twice[2]);
    let prefixed = read("1 1 * * * a\n", &CrontabSource { prefix: "web1-", ..SOURCE }).unwrap();
    assert_eq!(prefixed.entries[0].name(), "web1-a");
}

#[test]
fn the_home_folder_is_the_folder_of_the_run_and_a_variable() {
    let text = "HOME=/srv/app\nSHELL=/bin/bash\nPATH=/opt/bin\nLOGNAME=root\n1 1 * * * a\n";
    let result = read(text, &SOURCE).unwrap();
    let expected =
        json!({"argv": ["/bin/bash", "-c", "a"], "cwd": "/srv/app", "env": {"HOME": "/srv/app", "PATH": "/opt/bin"}});
    assert_eq!(job(&result, "a")["params"], expected);
}

#[test]
fn input_ends_with_one_line_break() {
    for (command, stdin) in [
        ("a%x", json!("x\n")),
        ("a%x%", json!("x\n")),
        ("a%x%%y", json!("x\n\ny\n")),
        ("a%", Value::Null),
        ("a", Value::Null),
    ] {
        let result = read(&format!("1 1 * * * {command}\n"), &SOURCE).unwrap();
        assert_eq!(job(&result, "a")["params"]["stdin"], stdin, "{command}");
    }
}

#[test]
fn lines_of_other_forms_are_taken_or_left_out_with_the_reason() {
    let system = CrontabSource { has_user: true, ..SOURCE };
    let text = "-*/10 * * * *\troot\t/opt/quiet\n* * * * * * root\tx\n0 0 2 * * 1-5 root y\n0 0 31 2 * root never\n";
    let result = read(text, &system).unwrap();
    assert_eq!(job(&result, "quiet")["schedule"]["cron"], "*/10 * * * *");
    let report = result.text("x");
    for expected in [
        "* * * * * * root x (line 2): left out: its user is \"*\", which is not a name",
        "(line 3): left out: its user is \"1-5\"",
        "never (line 4): changed: its schedule has no instant from now on",
    ] {
        assert!(report.contains(expected), "{expected}: {report}");
    }
    assert!(!report.contains('\t'), "{report}");
    let six = read("0 0 2 * * 1 /opt/x\n61 * * * *\tx\ty\n", &SOURCE).unwrap().text("x");
    for expected in ["left out: its command begins with \"1\"", "x y (line 2): left out"] {
        assert!(six.contains(expected), "{expected}: {six}");
    }
}
