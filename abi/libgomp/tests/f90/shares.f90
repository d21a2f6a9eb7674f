! Loops, sections, ordered and critical regions, tasks, reductions, locks as Fortran has them. Says "ok".
program shares
  use omp_lib
  implicit none
  integer, parameter :: n = 1000
  integer :: i, j, total, turn, nested, ordered_failures, threads
  integer :: seen(n)
  integer(8) :: long
  real(8) :: sums(3)
  character(len=20) :: text
  integer(omp_lock_kind) :: lock
  integer(omp_nest_lock_kind) :: nest
  integer, allocatable :: grid(:, :)

  threads = 0
  call omp_set_num_threads(4)
  call omp_set_dynamic(.false.)
  call check(omp_get_max_threads() == 4 .and. .not. omp_in_parallel(), 1)
  call check(.not. omp_get_dynamic() .and. omp_get_wtime() > 0, 2)

  !$omp parallel reduction(+:threads)
  threads = threads + 1
  call check(omp_get_num_threads() == 4 .and. omp_in_parallel(), 3)
  !$omp end parallel
  call check(threads == 4, 4)

  seen = 0
  !$omp parallel do schedule(dynamic, 7)
  do i = 1, n
    seen(i) = seen(i) + i
  end do
  !$omp end parallel do
  call check(all(seen == [(i, i = 1, n)]), 5)

  ! Down, with a step, and with integers of eight bytes.
  total = 0
  !$omp parallel do schedule(guided, 2) reduction(+:total)
  do long = 9000000000_8, 8999999000_8, -3_8
    total = total + 1
  end do
  !$omp end parallel do
  call check(total == 334, 6)

  call omp_set_schedule(omp_sched_guided, 5)
  sums = 0
  !$omp parallel do schedule(runtime) reduction(+:sums)
  do i = 1, n
    sums = sums + [1d0, real(i, 8), 2d0]
  end do
  !$omp end parallel do
  call check(all(sums == [1000d0, 500500d0, 2000d0]), 7)

  turn = 1
  ordered_failures = 0
  !$omp parallel do ordered schedule(dynamic, 3)
  do i = 1, n
    !$omp ordered
    if (turn /= i) ordered_failures = ordered_failures + 1
    turn = turn + 1
    !$omp end ordered
  end do
  !$omp end parallel do
  call check(ordered_failures == 0 .and. turn == n + 1, 8)

  allocate (grid(40, 50))
  !$omp parallel do collapse(2) schedule(static, 11)
  do j = 1, 50
    do i = 1, 40
      grid(i, j) = i * 100 + j
    end do
  end do
  !$omp end parallel do
  call check(sum(grid) == sum([((i * 100 + j, i = 1, 40), j = 1, 50)]), 9)

  !$omp parallel workshare
  grid = grid * 2
  !$omp end parallel workshare
  call check(grid(40, 50) == 8100, 10)

  total = 0
  !$omp parallel sections reduction(+:total)
  !$omp section
  total = total + 1
  !$omp section
  total = total + 10
  !$omp section
  total = total + 100
  !$omp end parallel sections
  call check(total == 111, 11)

  total = 0
  call omp_init_lock(lock)
  call omp_init_nest_lock(nest)
  nested = 0
  !$omp parallel private(i)
  do i = 1, n
    !$omp critical (named)
    total = total + 1
    !$omp end critical (named)
    call omp_set_lock(lock)
    nested = nested + 1
    call omp_unset_lock(lock)
    call omp_set_nest_lock(nest)
    call omp_set_nest_lock(nest)
    call check(omp_test_nest_lock(nest) == 3, 12)
    call omp_unset_nest_lock(nest)
    call omp_unset_nest_lock(nest)
    call omp_unset_nest_lock(nest)
  end do
  !$omp end parallel
  call check(total == 4 * n .and. nested == 4 * n, 13)
  call omp_destroy_lock(lock)
  call omp_destroy_nest_lock(nest)

  text = 'nobody'
  !$omp parallel private(text)
  !$omp single
  text = 'told to all'
  !$omp end single copyprivate(text)
  call check(text == 'told to all', 14)
  !$omp end parallel

  total = 0
  !$omp parallel
  !$omp single
  call tree(10)
  !$omp end single
  !$omp end parallel
  call check(total == 1023, 15)

  !$omp parallel num_threads(2)
  !$omp single
  !$omp taskloop grainsize(9) shared(seen)
  do i = 1, n
    seen(i) = -i
  end do
  !$omp end taskloop
  !$omp end single
  !$omp end parallel
  call check(sum(seen) == -500500, 16)

  call omp_set_affinity_format('%n of %N')
  text = ''
  call check(omp_capture_affinity(text, '') == 6 .and. text == '0 of 1', 17)
  print '(a)', 'ok'

contains

  recursive subroutine tree(depth)
    integer, intent(in) :: depth
    if (depth == 0) return
    !$omp atomic
    total = total + 1
    !$omp task
    call tree(depth - 1)
    !$omp end task
    !$omp task
    call tree(depth - 1)
    !$omp end task
    !$omp taskwait
  end subroutine

  subroutine check(is_right, number)
    logical, intent(in) :: is_right
    integer, intent(in) :: number
    if (is_right) return
    print '(a, i0)', 'not right: ', number
    error stop
  end subroutine
end program
