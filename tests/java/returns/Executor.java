import com.xxl.job.core.biz.model.ReturnT;
import com.xxl.job.core.executor.XxlJobExecutor;
import com.xxl.job.core.handler.IJobHandler;
import com.xxl.job.core.log.XxlJobLogger;
import com.xxl.job.core.util.ShardingUtil;
import java.util.concurrent.TimeUnit;

/** An executor of version 2.2, whose handlers return their results: URL APP TOKEN PORT FOLDER. */
public class Executor {
    interface Work {
        ReturnT<String> run(String param) throws Exception;
    }

    static void handler(String name, Work work) {
        XxlJobExecutor.registJobHandler(name, new IJobHandler() {
            @Override
            public ReturnT<String> execute(String param) throws Exception {
                return work.run(param);
            }
        });
    }

    public static void main(String[] args) throws Exception {
        handler("echo", param -> {
            XxlJobLogger.log("echo of {}", param);
            ShardingUtil.ShardingVO shard = ShardingUtil.getShardingVo();
            return new ReturnT<>(200, param + " " + shard.getIndex() + "/" + shard.getTotal());
        });
        handler("fail", param -> new ReturnT<>(500, "asked to fail"));
        handler("throw", param -> {
            throw new IllegalStateException("thrown");
        });
        handler("sleep", param -> {
            XxlJobLogger.log("sleeping");
            TimeUnit.SECONDS.sleep(600);
            return IJobHandler.SUCCESS;
        });
        XxlJobExecutor executor = new XxlJobExecutor();
        executor.setAdminAddresses(args[0] + "/xxl-job-admin");
        executor.setAppname(args[1]);
        executor.setAccessToken(args[2]);
        executor.setIp("127.0.0.1");
        executor.setPort(Integer.parseInt(args[3]));
        executor.setLogPath(args[4]);
        executor.setLogRetentionDays(3);
        executor.start();
        Thread.currentThread().join();
    }
}
