//! Tests of the SQL that is rendered for each database.

use super::*;

const BATCH: Statement = Statement {
    name: "batch",
    text: "UPDATE {join:it}t SET a = v.column2 {from:it} WHERE {of_rows:t.id} AND b = ? {for_update}",
};

#[track_caller]
fn check_render(dialect: Dialect, statement: &Statement, row_count: usize, expected: &str) {
    assert_eq!(dialect.render(statement, row_count), expected);
}

#[test]
fn an_insert_of_an_existing_row_changes_the_row() {
    const ADD: Statement = Statement {
        name: "add",
        text: "INSERT INTO t (id, kind, a) {values:iti} {or_update:id, kind} a = t.a + {new:a}",
    };
    check_render(
        Dialect::Postgres,
        &ADD,
        0,
        "INSERT INTO t (id, kind, a) SELECT * FROM unnest($1::text::bigint[], $2::text::text[], $3::text::bigint[]) \
         ON CONFLICT (id, kind) DO UPDATE SET a = t.a + excluded.a",
    );
    check_render(
        Dialect::Sqlite,
        &ADD,
        1,
        "INSERT INTO t (id, kind, a) VALUES (?, ?, ?) ON CONFLICT (id, kind) DO UPDATE SET a = t.a + excluded.a",
    );
    check_render(
        Dialect::MySql,
        &ADD,
        1,
        "INSERT INTO t (id, kind, a) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE a = t.a + VALUES(a)",
    );
}

#[test]
fn a_batch_update_is_rendered_for_each_database() {
    check_render(
        Dialect::Postgres,
        &BATCH,
        0,
        "UPDATE t SET a = v.column2 FROM unnest($1::text::bigint[], $2::text::text[]) AS v(column1, column2) \
         WHERE t.id = v.column1 AND t.id = ANY((SELECT $1::text::bigint[])::bigint[]) AND b = $3 FOR UPDATE",
    );
    check_render(
        Dialect::Sqlite,
        &BATCH,
        1,
        "UPDATE t SET a = v.column2 FROM (VALUES (?, ?)) AS v WHERE t.id = v.column1 AND b = ? ",
    );
    check_render(
        Dialect::MySql,
        &BATCH,
        2,
        "UPDATE (SELECT CAST(? AS SIGNED) AS column1, ? AS column2 UNION ALL SELECT CAST(? AS SIGNED), ?) AS v \
         STRAIGHT_JOIN t SET a = v.column2  WHERE t.id = v.column1 AND b = ? FOR UPDATE",
    );
}

/// The index of MySQL has the rows of idle jobs, which the partial index of the other databases leaves out.
#[test]
fn the_next_home_is_found_without_reading_idle_jobs() {
    let find = &crate::sql::heal::FIND_NEXT_HOME;
    let planned = |argument: &str| {
        format!(
            "SELECT home FROM job_due WHERE home > {argument} AND job_due.next_fire_at_ms IS NOT NULL ORDER BY home LIMIT 1"
        )
    };
    check_render(Dialect::Sqlite, find, 0, &planned("?"));
    check_render(Dialect::Postgres, find, 0, &planned("$1"));
    check_render(Dialect::MySql, find, 0, "SELECT home FROM job_due WHERE home > ?  ORDER BY home LIMIT 1");
}

#[test]
fn lists_and_values_grow_with_the_rows() {
    let insert = Statement { name: "insert", text: "INSERT {ignore} INTO t {values:iit} {or_ignore}" };
    check_render(Dialect::MySql, &insert, 2, "INSERT IGNORE INTO t VALUES (?, ?, ?), (?, ?, ?) ");
    let select = Statement { name: "select", text: "SELECT a FROM t WHERE b = ? AND id {in_list} AND c = ?" };
    check_render(Dialect::Sqlite, &select, 2, "SELECT a FROM t WHERE b = ? AND id IN (?, ?) AND c = ?");
    let expected = "SELECT a FROM t WHERE b = $1 AND id = ANY((SELECT $2::text::bigint[])::bigint[]) AND c = $3";
    check_render(Dialect::Postgres, &select, 0, expected);
}

#[test]
fn the_locale_of_a_database_does_not_fold_letters() {
    let select = Statement { name: "select", text: "SELECT id FROM t WHERE {lower:a} LIKE ?" };
    check_render(Dialect::Postgres, &select, 0, "SELECT id FROM t WHERE LOWER(COALESCE(a, '') COLLATE \"C\") LIKE $1");
    for dialect in [Dialect::Sqlite, Dialect::MySql] {
        check_render(dialect, &select, 0, "SELECT id FROM t WHERE LOWER(COALESCE(a, '')) LIKE ?");
    }
}

#[test]
fn arrays_are_quoted() {
    let rows = [
        Argument::Int(Some(-1)),
        Argument::Text(Some(r#"a"b\c"#.to_owned())),
        Argument::Int(None),
        Argument::Text(None),
        Argument::Int(Some(2)),
        Argument::Text(Some("NULL,{}".to_owned())),
    ];
    let columns = columns(&rows, 3);
    let texts: Vec<&str> = columns
        .iter()
        .map(|column| match column {
            Argument::Text(Some(text)) => text.as_str(),
            other => unreachable!("{other:?}"),
        })
        .collect();
    assert_eq!(texts, ["{-1,NULL,2}", r#"{"a\"b\\c",NULL,"NULL,{}"}"#]);
}

#[test]
fn rows_are_filled_up_before_the_arguments_after_them() {
    let statements = RenderedStatements::new(Dialect::Sqlite);
    let query = Query::new(&BATCH).rows(&[1, 2, 3], |query, id| query.int(*id).text("x")).int(9);
    let (text, arguments) = statements.render_query(query);
    assert_eq!(text.matches('?').count(), 9);
    assert_eq!(arguments.len(), 9);
}

#[test]
fn an_insert_of_rows_that_a_list_names_is_filled_up() {
    let statements = RenderedStatements::new(Dialect::MySql);
    let ids = Query::new(&crate::sql::run::open_rows::WRITE_OPEN_ROWS).list([1, 2, 3].into_iter());
    let (text, arguments) = statements.render_query(ids);
    assert!(text.contains("WHERE id IN (?, ?, ?, ?) AND (status IN"), "{text}");
    assert!(text.ends_with("due_at_ms = VALUES(due_at_ms)"), "{text}");
    assert_eq!(arguments.len(), 4);
}
