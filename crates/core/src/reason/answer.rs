//! Describes the wait of a run that was sent to an executor that has not answered yet.

use super::{ObstacleKind, ReasonDetail};
use crate::words::Lang;

pub(super) fn words(detail: &ReasonDetail, lang: Lang) -> String {
    let obstacle = detail.obstacles.first().map(|obstacle| (obstacle.executor.as_str(), obstacle.kind));
    match (obstacle, lang) {
        (Some((executor, ObstacleKind::Offline)), Lang::En) => {
            format!("for executor {executor} to connect again (sent, not known to have begun)")
        }
        (Some((executor, ObstacleKind::Offline)), Lang::Zh) => {
            format!("执行器 {executor} 重新连接（已发送，尚不知是否已开始）")
        }
        (Some((executor, _)), Lang::En) => format!("for executor {executor} to answer (sent, not answered yet)"),
        (Some((executor, _)), Lang::Zh) => format!("执行器 {executor} 应答（已发送，尚未应答）"),
        (None, Lang::En) => "for an executor to answer (sent, not answered yet)".to_owned(),
        (None, Lang::Zh) => "执行器应答（已发送，尚未应答）".to_owned(),
    }
}
