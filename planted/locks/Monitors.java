import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.Semaphore;
import java.util.concurrent.locks.ReentrantLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;

/**
 * Known waits for the locks of Java: of its objects, and of java.util.concurrent. Each has a pair of threads of its own:
 * a holder, who keeps the lock for a while in each round, and a waiter of the family's name, who wants it meanwhile and times that.
 *
 * <pre>
 *   java -cp FOLDER Monitors [ROUNDS]
 *   {"pid": 4711, "monitor": {"times": 40, "seconds": 0.1234}, "mutex": ...}
 * </pre>
 */
final class Monitors {
    private static final int HOLD_STEPS = 2_000_000; // some 3 ms
    private static final int BEGINNERS_ROUNDS = 10;

    private static final Object VAULT = new Object();
    private static final ReentrantLock LEDGER = new ReentrantLock();
    private static final ReentrantReadWriteLock ARCHIVE = new ReentrantReadWriteLock();
    private static final Semaphore TICKETS = new Semaphore(0);
    private static final CyclicBarrier GATE = new CyclicBarrier(2);
    private static final Object BELL = new Object();
    private static int rung;

    private static volatile int held;
    private static volatile int done;
    private static volatile long sink;

    interface Step {
        void run(int round) throws Exception;
    }

    static void work() {
        long x = 88172645463325252L;
        for (int i = 0; i < HOLD_STEPS; i++) {
            x ^= x << 13;
            x ^= x >>> 7;
            x ^= x << 17;
        }
        sink = x;
    }

    static void hold(int round) {
        held = round;
        work();
    }

    static void holdTheVault(int round) {
        synchronized (VAULT) {
            hold(round);
        }
    }

    static void wantTheVault(int round) {
        synchronized (VAULT) {
            sink = round;
        }
    }

    static void holdTheLedger(int round) {
        LEDGER.lock();
        hold(round);
        LEDGER.unlock();
    }

    static void wantTheLedger(int round) {
        LEDGER.lock();
        LEDGER.unlock();
    }

    static void holdForWriting(int round) {
        ARCHIVE.writeLock().lock();
        hold(round);
        ARCHIVE.writeLock().unlock();
    }

    static void wantToRead(int round) {
        ARCHIVE.readLock().lock();
        ARCHIVE.readLock().unlock();
    }

    static void holdForReading(int round) {
        ARCHIVE.readLock().lock();
        hold(round);
        ARCHIVE.readLock().unlock();
    }

    static void wantToWrite(int round) {
        ARCHIVE.writeLock().lock();
        ARCHIVE.writeLock().unlock();
    }

    static void holdTheTicket(int round) {
        hold(round);
        TICKETS.release();
    }

    static void wantATicket(int round) throws Exception {
        TICKETS.acquire();
    }

    static void comeToTheGateLate(int round) throws Exception {
        hold(round);
        GATE.await();
    }

    static void waitAtTheGate(int round) throws Exception {
        GATE.await();
    }

    static void ringTheBell(int round) {
        hold(round);
        synchronized (BELL) {
            rung = round;
            BELL.notify();
        }
    }

    static void waitForTheBell(int round) throws Exception {
        synchronized (BELL) {
            while (rung != round) {
                BELL.wait();
            }
        }
    }

    /** What its waits were, as JSON: when its code has been compiled, for which there is a waiter of another name. */
    static String family(String name, int rounds, Step hold, Step want) throws Exception {
        waitedBy("beginner", BEGINNERS_ROUNDS, hold, want);
        long waited = waitedBy(name, rounds, hold, want);
        return String.format("\"%s\": {\"times\": %d, \"seconds\": %.6f}", name, rounds, waited / 1e9);
    }

    static long waitedBy(String name, int rounds, Step hold, Step want) throws Exception {
        held = 0;
        done = 0;
        long[] waited = new long[1];
        Thread holder = new Thread(() -> each(rounds, round -> {
            hold.run(round);
            await(() -> done == round);
        }), "holder");
        Thread waiter = new Thread(() -> each(rounds, round -> {
            await(() -> held == round);
            long since = System.nanoTime();
            want.run(round);
            waited[0] += System.nanoTime() - since;
            done = round;
        }), name);
        holder.start();
        waiter.start();
        holder.join();
        waiter.join();
        return waited[0];
    }

    static void each(int rounds, Step step) {
        try {
            for (int round = 1; round <= rounds; round++) {
                step.run(round);
            }
        } catch (Exception error) {
            throw new AssertionError(error);
        }
    }

    interface Condition {
        boolean holds();
    }

    static void await(Condition condition) {
        while (!condition.holds()) {
            Thread.yield();
        }
    }

    public static void main(String[] args) throws Exception {
        int rounds = args.length > 0 ? Integer.parseInt(args[0]) : 40;
        tell(String.format("{\"pid\": %d, %s}%n", ProcessHandle.current().pid(), String.join(", ",
                family("monitor", rounds, Monitors::holdTheVault, Monitors::wantTheVault),
                family("mutex", rounds, Monitors::holdTheLedger, Monitors::wantTheLedger),
                family("read", rounds, Monitors::holdForWriting, Monitors::wantToRead),
                family("write", rounds, Monitors::holdForReading, Monitors::wantToWrite),
                family("semaphore", rounds, Monitors::holdTheTicket, Monitors::wantATicket),
                family("barrier", rounds, Monitors::comeToTheGateLate, Monitors::waitAtTheGate),
                family("condition", rounds, Monitors::ringTheBell, Monitors::waitForTheBell))));
    }

    private static void tell(String line) throws IOException {
        String out = System.getenv("PLANTED_OUT");
        if (out == null || out.isEmpty()) {
            System.err.print(line);
        } else {
            Files.writeString(Path.of(out), line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        }
    }
}
