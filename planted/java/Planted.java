import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

/**
 * What the planted Java programs share: work of an exactly known size, and the line that says
 * what was planted. The twin of c/planted.h.
 */
final class Planted {
    private static final int STEPS_PER_UNIT = 500;
    private static int crewSize;

    interface Job {
        /** Nanoseconds lost. */
        long run() throws Exception;
    }

    /** Pure ALU work: no memory, no system call, nothing to share. */
    static void burn(int units) {
        long x = 88172645463325252L;
        for (int i = units * STEPS_PER_UNIT; i != 0; i--) {
            x ^= x << 13;
            x ^= x >>> 7;
            x ^= x << 17;
        }
        if (x == 0) { // never: but without a use of x the compiler would drop the loop's body
            throw new AssertionError("xorshift reached zero");
        }
    }

    /** Reads the number of threads from the command line. */
    static int begin(String[] args) {
        crewSize = args.length > 0 ? Integer.parseInt(args[0]) : 0;
        if (crewSize < 1 || crewSize > 4096) {
            System.err.println("usage: java -cp JAR CLASS THREADS");
            System.exit(2);
        }
        return crewSize;
    }

    /** Takes the next of total pieces of work, which are common to all threads. */
    static boolean another(AtomicInteger taken, int total) {
        return taken.incrementAndGet() <= total;
    }

    /** Runs job in n threads and adds up the results. */
    static long runCrew(int n, Job job) throws InterruptedException {
        AtomicLong sum = new AtomicLong();
        Thread[] crew = new Thread[n];
        for (int id = 0; id < n; id++) {
            crew[id] = new Thread(() -> {
                try {
                    sum.addAndGet(job.run());
                } catch (Exception error) {
                    throw new AssertionError(error);
                }
            });
            crew[id].start();
        }
        for (Thread thread : crew) {
            thread.join();
        }
        return sum.get();
    }

    /** Since the virtual machine began to start, by the kernel's account in ticks of 10 ms. */
    private static double secondsOfThisProcess() throws IOException {
        String stat = Files.readString(Path.of("/proc/self/stat"));
        String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
        double bornAfterBoot = Long.parseLong(fields[19]) / 100.0;
        return Double.parseDouble(Files.readString(Path.of("/proc/uptime")).split(" ")[0]) - bornAfterBoot;
    }

    /** One line of JSON, appended to $PLANTED_OUT or written to standard error. */
    static void tell(String cause, long ns) throws IOException {
        double wall = secondsOfThisProcess();
        String line = String.format("{\"cause\": \"%s\", \"seconds\": %.6f, \"wall\": %.6f, \"cpus\": %d}%n",
                cause, ns / 1e9, wall, crewSize);
        String out = System.getenv("PLANTED_OUT");
        if (out == null || out.isEmpty()) {
            System.err.print(line);
        } else {
            Files.writeString(Path.of(out), line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        }
    }
}
