//! Three nodes of MariaDB with Galera. Each commit has reached all of them when it is acknowledged.

use std::path::Path;
use std::time::Duration;

use rondel_tests::{Backend, Method, Process, ScratchDb, Signal, left_out_without, wait_until};
use serde_json::json;

use super::database::free_port;
use super::failover::{Cluster, End, address_of, place_of};
use super::fixture::{job, server};
use super::mariadb::MariaDb;

/// Where Debian's package `galera-4` has the library, which MariaDB loads.
const LIBRARY: &str = "/usr/lib/galera/libgalera_smm.so";
const LIMIT: Duration = Duration::from_secs(60);

/// The first node is the one that Rondel's servers use, the last node is the one that failed last.
pub(super) struct Galera {
    nodes: Vec<Node>,
    /// The addresses of all nodes, by which each node finds the others.
    addresses: String,
}

struct Node {
    database: MariaDb,
    group_port: u16,
}

impl Galera {
    /// Starts a cluster; `None` if this host has no Galera or no MariaDB.
    pub(super) async fn start() -> Option<Self> {
        if !Path::new(LIBRARY).exists() {
            left_out_without("mysql", "there is no Galera for MariaDB");
            return None;
        }
        let mut nodes = Vec::new();
        for _ in 0..3 {
            nodes.push(Node { database: MariaDb::installed()?, group_port: free_port() });
        }
        let addresses = nodes.iter().map(|node| format!("127.0.0.1:{}", node.group_port)).collect::<Vec<_>>().join(",");
        let mut galera = Self { nodes, addresses };
        galera.up(0, &["--wsrep-new-cluster".to_owned()]).await;
        let first = &galera.nodes[0].database;
        first.set_up();
        first.sql("CREATE DATABASE aside");
        first.sql("CREATE TABLE aside.written (id INT PRIMARY KEY, number INT NOT NULL)");
        first.sql("INSERT INTO aside.written VALUES (1, 1)");
        galera.up(1, &[]).await;
        galera.up(2, &[]).await;
        galera.wait_until_synced().await;
        Some(galera)
    }

    async fn up(&mut self, index: usize, more: &[String]) {
        let settings = self.settings(index);
        self.nodes[index].database.up(&[&settings[..], more].concat()).await;
    }

    fn settings(&self, index: usize) -> [String; 9] {
        let (group, transfer, copy) = (self.nodes[index].group_port, free_port(), free_port());
        [
            "--binlog-format=ROW".to_owned(),
            "--innodb-autoinc-lock-mode=2".to_owned(),
            "--wsrep-on=ON".to_owned(),
            format!("--wsrep-provider={LIBRARY}"),
            format!(
                "--wsrep-provider-options=base_port={group};gmcast.listen_addr=tcp://127.0.0.1:{group};\
                 ist.recv_addr=127.0.0.1:{transfer};gcache.size=64M"
            ),
            format!("--wsrep-cluster-address=gcomm://{}", self.addresses),
            "--wsrep-node-address=127.0.0.1".to_owned(),
            "--wsrep-sst-method=rsync".to_owned(),
            format!("--wsrep-sst-receive-address=127.0.0.1:{copy}"),
        ]
    }

    /// The last change that a dead node has. With this position, the node receives only the later changes, and not a
    /// copy of everything.
    fn position(&self, index: usize) -> String {
        let settings = [&self.settings(index)[..], &["--wsrep-recover".to_owned()]].concat();
        let output = self.nodes[index].database.program(&settings).output().expect("run mariadbd");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let position = text.lines().find_map(|line| line.split_once("Recovered position: ")).map(|(_, found)| found);
        assert!(position.is_some(), "no position: {text}");
        position.unwrap_or_default().trim().to_owned()
    }

    /// Waits until each node has each commit.
    async fn wait_until_synced(&self) {
        for node in &self.nodes {
            wait_until(LIMIT, "the node is synced with two others", async || {
                let state = node.database.try_sql(
                    "SHOW STATUS WHERE Variable_name IN ('wsrep_cluster_size', 'wsrep_local_state_comment')",
                )?;
                if state.contains("\t3") && state.contains("Synced") { Ok(()) } else { Err(state) }
            })
            .await;
        }
    }
}

impl Cluster for Galera {
    fn url(&self) -> String {
        self.nodes[0].database.url()
    }

    fn port(&self) -> u16 {
        self.nodes[0].database.port
    }

    async fn fail(&mut self, end: End) {
        self.nodes[0].database.process().signal(match end {
            End::Killed => Signal::KILL,
            End::Frozen => Signal::STOP,
        });
        self.nodes.rotate_left(1);
    }

    /// The two other nodes commit nothing until they have excluded the one that failed.
    async fn wait_for_writes(&self) {
        let statement = "UPDATE aside.written SET number = number + 1";
        wait_until(LIMIT, "the next node takes writes", async || {
            // Without blocking the proxy, which runs in this thread.
            let mut client = tokio::process::Command::from(self.nodes[0].database.client(statement));
            let output = client.output().await.expect("run mariadb");
            if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
        })
        .await;
    }

    /// Restarts or continues the node that failed.
    async fn mend(&mut self) {
        if self.nodes[2].database.process().has_ended().is_some() {
            let position = self.position(2);
            self.up(2, &[format!("--wsrep-start-position={position}")]).await;
        } else {
            self.nodes[2].database.process().signal(Signal::CONT);
        }
        self.wait_until_synced().await;
    }
}

#[tokio::test]
async fn a_session_at_another_node_reads_all_that_was_committed() {
    let Some(mut galera) = Galera::start().await else { return };
    let (address, url) = address_of(&galera).await;
    let db = ScratchDb::given(Backend::Mysql, &url);
    let server = server(&db, &[]).await;
    let api = server.api();
    // The next node receives changes and applies none.
    let next = &galera.nodes[1].database;
    let _holder = Process::start("a lock", next.client("FLUSH TABLES WITH READ LOCK; DO SLEEP(8)"));
    wait_until(LIMIT, "the next node is locked", async || {
        let state = next.try_sql("SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User sleep'")?;
        if state == "1" { Ok(()) } else { Err(state) }
    })
    .await;
    api.post("/api/v1/jobs", job("late", json!({}), json!({"schedule": null}))).await.expect(201);
    galera.fail(End::Killed).await;
    address.redirect(&place_of(&galera));
    wait_until(LIMIT, "the job is read at the next node", async || {
        let answer = api.try_answer(api.request(Method::GET, "/api/v1/jobs/late")).await?;
        assert_ne!(answer.status, 404, "{answer:?}");
        if answer.status == 200 { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
}
