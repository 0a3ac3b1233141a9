import com.xxl.job.core.context.XxlJobHelper;
import com.xxl.job.core.executor.impl.XxlJobSimpleExecutor;
import com.xxl.job.core.handler.annotation.XxlJob;
import java.util.Collections;
import java.util.concurrent.TimeUnit;

/** An executor of versions from 2.3 on, whose handlers are annotated methods: URL APP TOKEN PORT FOLDER. */
public class Executor {
    public static class Handlers {
        @XxlJob("echo")
        public void echo() {
            String param = XxlJobHelper.getJobParam();
            XxlJobHelper.log("echo of {}", param);
            XxlJobHelper.handleSuccess(param + " " + XxlJobHelper.getShardIndex() + "/" + XxlJobHelper.getShardTotal());
        }

        @XxlJob("fail")
        public void fail() {
            XxlJobHelper.handleFail("asked to fail");
        }

        @XxlJob("throw")
        public void throwIt() {
            throw new IllegalStateException("thrown");
        }

        @XxlJob("sleep")
        public void sleep() throws Exception {
            XxlJobHelper.log("sleeping");
            TimeUnit.SECONDS.sleep(600);
        }
    }

    public static void main(String[] args) throws Exception {
        XxlJobSimpleExecutor executor = new XxlJobSimpleExecutor();
        executor.setXxlJobBeanList(Collections.singletonList(new Handlers()));
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
