/* A library that a program without OpenMP loads late. */
int count_threads(int threads);

int count_threads(int threads)
{
    int ran = 0;
#pragma omp parallel num_threads(threads) reduction(+ : ran)
    ran++;
    return ran;
}
